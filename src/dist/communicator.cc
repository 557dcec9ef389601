#include "dist/communicator.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"

namespace haversack {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kGatherTag = 1;
constexpr int kTextTag = 2;
// Of texts; vectors are cut by whoever sends them.
constexpr size_t kTextChunk = size_t{1} << 20;

// Short waits cost no sleep, long ones no core.
constexpr int kYields = 20;
constexpr int kShortestSleepUs = 20;
constexpr int kLongestSleepUs = 1000;

std::string Names(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

}  // namespace

Communicator::Communicator() : shared_(std::make_shared<Shared>()), members_({0}) {}

Communicator::Communicator(std::unique_ptr<Link> link, const Options& options)
    : shared_(std::make_shared<Shared>()) {
  rank_ = link->rank();
  for (int r = 0; r < link->size(); ++r) members_.push_back(r);
  shared_->link = std::move(link);
  shared_->options = options;
}

Communicator::Communicator(std::shared_ptr<Shared> shared, std::vector<int> members, int rank)
    : shared_(std::move(shared)), members_(std::move(members)), rank_(rank) {}

int Communicator::local_size() const { return shared_->link ? shared_->link->local_size() : 1; }

Communicator Communicator::Group(const std::vector<int>& ranks) const {
  std::vector<int> members;
  int rank = -1;
  for (const int r : ranks) {
    if (r == rank_) rank = static_cast<int>(members.size());
    members.push_back(members_[r]);
  }
  HAVERSACK_CHECK(rank >= 0, "rank {} is not in its group", rank_);
  return Communicator(shared_, std::move(members), rank);
}

Communicator Communicator::Split(int64_t color) const {
  const std::vector<int64_t> colors = AllGather(color, "splitting the ranks");
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (colors[r] == color) ranks.push_back(r);
  }
  return Group(ranks);
}

Link::Ticket Communicator::Send(int to, int tag, const void* data, size_t bytes) const {
  shared_->traffic.sent_bytes += static_cast<int64_t>(bytes);
  return shared_->link->Send(members_[to], tag, data, bytes);
}

Link::Ticket Communicator::Receive(int from, int tag, void* data, size_t bytes) const {
  shared_->traffic.received_bytes += static_cast<int64_t>(bytes);
  return shared_->link->Receive(members_[from], tag, data, bytes);
}

void Communicator::Wait(const std::function<bool()>& step, const std::function<int64_t()>& progress,
                        const std::function<std::vector<int>()>& late,
                        const std::string& what) const {
  if (step()) return;
  const auto start = Clock::now();
  auto since = start;
  int64_t before = progress();
  int tries = 0;
  int sleep_us = kShortestSleepUs;
  while (!step()) {
    const auto now = Clock::now();
    if (const int64_t after = progress(); after != before) {
      before = after;
      since = now;
      tries = 0;
      sleep_us = kShortestSleepUs;
    }
    if (std::chrono::duration<double>(now - since).count() > deadline_seconds()) {
      std::vector<int> ranks = late();
      for (int& r : ranks) r = members_[r];
      throw UserError(
          ExitCode::kPeer,
          "{} did not come to {} within {:g} s: stopped, cut off or too slow; start the run again "
          "with --resume, or raise --deadline",
          Names(ranks), what, deadline_seconds());
    }
    if (++tries <= kYields) {
      sched_yield();
    } else {
      usleep(sleep_us);
      sleep_us = std::min(2 * sleep_us, kLongestSleepUs);
    }
  }
  shared_->traffic.wait_seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

namespace {

// Messages that are waited for together, each with the rank at its other end.
class Pending {
 public:
  explicit Pending(const Communicator& comm) : comm_(comm) {}
  void Add(int rank, Link::Ticket ticket) { open_.push_back({rank, ticket}); }

  void Wait(const std::string& what) {
    comm_.Wait(
        [&] {
          std::erase_if(open_, [&](const Entry& e) { return comm_.Done(e.ticket); });
          return open_.empty();
        },
        [&] { return -static_cast<int64_t>(open_.size()); },
        [&] {
          std::vector<int> ranks;
          for (const Entry& e : open_) ranks.push_back(e.rank);
          std::sort(ranks.begin(), ranks.end());
          ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
          return ranks;
        },
        what);
  }

 private:
  struct Entry {
    int rank;
    Link::Ticket ticket;
  };
  const Communicator& comm_;
  std::vector<Entry> open_;
};

}  // namespace

void Communicator::AllGatherBytes(const void* mine, size_t bytes, void* all,
                                  const std::string& what) const {
  auto* out = static_cast<std::byte*>(all);
  Pending pending(*this);
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) {
      std::memcpy(out + r * bytes, mine, bytes);
      continue;
    }
    pending.Add(r, Receive(r, kGatherTag, out + r * bytes, bytes));
    pending.Add(r, Send(r, kGatherTag, mine, bytes));
  }
  pending.Wait(what);
}

std::vector<std::string> Communicator::AllGatherText(const std::string& mine,
                                                     const std::string& what) const {
  const std::vector<uint64_t> sizes = AllGather<uint64_t>(mine.size(), what);
  std::vector<std::string> all(size());
  Pending pending(*this);
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) {
      all[r] = mine;
      continue;
    }
    all[r].resize(sizes[r]);
    for (size_t at = 0; at < sizes[r]; at += kTextChunk) {
      pending.Add(r, Receive(r, kTextTag, all[r].data() + at, std::min(kTextChunk, sizes[r] - at)));
    }
    for (size_t at = 0; at < mine.size(); at += kTextChunk) {
      pending.Add(r, Send(r, kTextTag, mine.data() + at, std::min(kTextChunk, mine.size() - at)));
    }
  }
  pending.Wait(what);
  return all;
}

std::string Communicator::Broadcast(const std::string& text, int root,
                                    const std::string& what) const {
  return AllGatherText(rank_ == root ? text : "", what)[root];
}

double Communicator::Sum(double mine, const std::string& what) const {
  double sum = 0;
  for (const double part : AllGather(mine, what)) sum += part;
  return sum;
}

void Communicator::Barrier(const std::string& what) const { AllGather<char>(0, what); }

void Communicator::Notice() const {
  if (shared_->link) shared_->link->Notice();
}

bool Communicator::Noticed() const {
  bool noticed = false;
  while (shared_->link && shared_->link->Noticed()) noticed = true;
  return noticed;
}

void Communicator::Abort(ExitCode code) const {
  if (shared_->link) shared_->link->Abort(code);
  std::_Exit(static_cast<int>(code));
}

}  // namespace haversack
