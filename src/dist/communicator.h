// Ranks that work together: all ranks of a run, or those of one trainer.
//
//   Communicator world(OpenMpiLink(), {.deadline_seconds = 600});
//   const std::vector<int64_t> counts = world.AllGather(count, "targets");
//
// Every collective is made of direct messages between the ranks that need each other, so no rank
// passes on what others wait for, and whoever is missing can be named. Each wait has a deadline,
// counted from the last message that came; a rank that lets it pass ends the run with exit 6 and
// its number (`what` says at what). A group of one sends nothing and never waits.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "dist/link.h"

namespace haversack {

// What one rank has sent and waited for so far.
struct Traffic {
  int64_t sent_bytes = 0;  // payload of all messages, headers included
  int64_t received_bytes = 0;
  int64_t syncs = 0;        // blocking exchanges of whole vectors: gradients, weights
  double wait_seconds = 0;  // blocked, with nothing to compute
};

class Communicator {
 public:
  struct Options {
    double deadline_seconds = 600;
  };

  // A process by itself.
  Communicator();
  Communicator(std::unique_ptr<Link> link, const Options& options);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  bool alone() const { return size() == 1; }
  bool leader() const { return rank_ == 0; }
  // The rank among all ranks of the run, which is what people are told.
  int world_rank(int rank) const { return members_[rank]; }
  // Ranks of the run on this machine.
  int local_size() const;

  // The group of these ranks (of this group), ascending, this one among them. Needs no message.
  Communicator Group(const std::vector<int>& ranks) const;
  // A group for each color; every rank calls it.
  Communicator Split(int64_t color) const;

  // Messages to one rank; `data` stays as it is until Done(ticket).
  Link::Ticket Send(int to, int tag, const void* data, size_t bytes) const;
  Link::Ticket Receive(int from, int tag, void* data, size_t bytes) const;
  bool Done(Link::Ticket ticket) const { return shared_->link->Done(ticket); }

  // Calls `step` until it is true, sleeping a little in between. `progress` is what `step` moves
  // on: the deadline starts again where it changes. Past it, `late` says which ranks are missing.
  void Wait(const std::function<bool()>& step, const std::function<int64_t()>& progress,
            const std::function<std::vector<int>()>& late, const std::string& what) const;

  // `bytes` of every rank, by rank, into `all`.
  void AllGatherBytes(const void* mine, size_t bytes, void* all, const std::string& what) const;

  template <typename T>
  requires std::is_trivially_copyable_v<T> std::vector<T> AllGather(const T& mine,
                                                                    const std::string& what)
  const {
    std::vector<T> all(size());
    AllGatherBytes(&mine, sizeof(T), all.data(), what);
    return all;
  }
  // Texts of any length, by rank.
  std::vector<std::string> AllGatherText(const std::string& mine, const std::string& what) const;
  // The text of rank `root` on every rank.
  std::string Broadcast(const std::string& text, int root, const std::string& what) const;
  // Sums by rank in order, so that all ranks have the same bits.
  double Sum(double mine, const std::string& what) const;
  void Barrier(const std::string& what) const;

  // Tells the ranks of the run, without waiting, to come to the next agreement early; and whether
  // one has.
  void Notice() const;
  bool Noticed() const;

  // Ends all ranks of the run.
  [[noreturn]] void Abort(ExitCode code) const;

  Traffic& traffic() const { return shared_->traffic; }
  double deadline_seconds() const { return shared_->options.deadline_seconds; }

 private:
  struct Shared {
    std::unique_ptr<Link> link;
    Options options;
    Traffic traffic;
  };
  Communicator(std::shared_ptr<Shared> shared, std::vector<int> members, int rank);

  std::shared_ptr<Shared> shared_;
  std::vector<int> members_;  // ranks of the run, by rank of the group
  int rank_ = 0;
};

}  // namespace haversack
