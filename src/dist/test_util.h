// Ranks that are threads of a test, with messages through memory.
#pragma once

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "base/threads.h"
#include "dist/communicator.h"
#include "dist/link.h"

namespace haversack::testing {

struct Mailboxes {
  std::mutex mutex;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes;  // from, to, tag
  std::map<int, int> notices;
};

class ThreadLink : public Link {
 public:
  ThreadLink(std::shared_ptr<Mailboxes> mail, int rank, int size)
      : mail_(std::move(mail)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_size() const override { return size_; }

  Ticket Send(int to, int tag, const void* data, size_t bytes) override {
    const auto* begin = static_cast<const std::byte*>(data);
    const std::lock_guard<std::mutex> lock(mail_->mutex);
    mail_->boxes[{rank_, to, tag}].emplace_back(begin, begin + bytes);
    return next_++;
  }
  Ticket Receive(int from, int tag, void* data, size_t bytes) override {
    waiting_.push_back({next_, from, tag, data, bytes});
    return next_++;
  }
  bool Done(Ticket ticket) override {
    const std::lock_guard<std::mutex> lock(mail_->mutex);
    std::erase_if(waiting_, [&](const Waiting& w) {
      auto& box = mail_->boxes[{w.from, rank_, w.tag}];
      if (box.empty()) return false;
      HAVERSACK_CHECK(box.front().size() == w.bytes, "{} bytes for {}", box.front().size(),
                      w.bytes);
      std::memcpy(w.data, box.front().data(), w.bytes);
      box.pop_front();
      return true;
    });
    for (const Waiting& w : waiting_) {
      if (w.ticket == ticket) return false;
    }
    return true;
  }
  void Notice() override {
    const std::lock_guard<std::mutex> lock(mail_->mutex);
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) ++mail_->notices[r];
    }
  }
  bool Noticed() override {
    const std::lock_guard<std::mutex> lock(mail_->mutex);
    if (mail_->notices[rank_] == 0) return false;
    --mail_->notices[rank_];
    return true;
  }
  void Abort(ExitCode) override { std::abort(); }

 private:
  struct Waiting {
    Ticket ticket;
    int from, tag;
    void* data;
    size_t bytes;
  };
  std::shared_ptr<Mailboxes> mail_;
  int rank_, size_;
  Ticket next_ = 0;
  std::vector<Waiting> waiting_;
};

// body(comm) on `size` ranks at once; what one of them throws is thrown here.
inline void RunRanks(
    int size, const std::function<void(Communicator&)>& body, double deadline_seconds = 60,
    const std::function<std::unique_ptr<Link>(std::unique_ptr<Link>)>& wrap = nullptr) {
  auto mail = std::make_shared<Mailboxes>();
  std::vector<std::exception_ptr> failures(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        SetNumThreads(1);
        std::unique_ptr<Link> link = std::make_unique<ThreadLink>(mail, r, size);
        if (wrap) link = wrap(std::move(link));
        Communicator comm(std::move(link), {.deadline_seconds = deadline_seconds});
        body(comm);
      } catch (...) {
        failures[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace haversack::testing
