#include "dist/delayed_link.h"

#include <chrono>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

namespace haversack {
namespace {

using Clock = std::chrono::steady_clock;

class DelayedLink : public Link {
 public:
  DelayedLink(std::unique_ptr<Link> link, double seconds)
      : link_(std::move(link)),
        delay_(
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  int local_size() const override { return link_->local_size(); }

  Ticket Send(int to, int tag, const void* data, size_t bytes) override {
    Message message = {.framed = std::vector<std::byte>(bytes + kStampBytes)};
    const Clock::time_point now = Clock::now();
    std::memcpy(message.framed.data(), &now, kStampBytes);
    std::memcpy(message.framed.data() + kStampBytes, data, bytes);
    message.inner = link_->Send(to, tag, message.framed.data(), message.framed.size());
    return Keep(std::move(message));
  }

  Ticket Receive(int from, int tag, void* data, size_t bytes) override {
    Message message = {.framed = std::vector<std::byte>(bytes + kStampBytes), .out = data};
    message.inner = link_->Receive(from, tag, message.framed.data(), message.framed.size());
    return Keep(std::move(message));
  }

  bool Done(Ticket ticket) override {
    Message& message = messages_.at(ticket);
    message.through = message.through || link_->Done(message.inner);
    if (!message.through) return false;
    if (message.out != nullptr) {
      Clock::time_point sent;
      std::memcpy(&sent, message.framed.data(), kStampBytes);
      if (Clock::now() < sent + delay_) return false;
      std::memcpy(message.out, message.framed.data() + kStampBytes,
                  message.framed.size() - kStampBytes);
    }
    messages_.erase(ticket);
    return true;
  }

  void Notice() override { link_->Notice(); }
  bool Noticed() override { return link_->Noticed(); }
  void Abort(ExitCode code) override { link_->Abort(code); }

 private:
  static constexpr size_t kStampBytes = sizeof(Clock::time_point);

  struct Message {
    std::vector<std::byte> framed;  // the time of sending, then the message
    void* out = nullptr;            // of a message that is received
    Ticket inner = 0;
    bool through = false;
  };

  Ticket Keep(Message message) {
    messages_[next_] = std::move(message);
    return next_++;
  }

  std::unique_ptr<Link> link_;
  Clock::duration delay_;
  std::map<Ticket, Message> messages_;  // moving a vector leaves its bytes where they are
  Ticket next_ = 0;
};

}  // namespace

std::unique_ptr<Link> DelayLink(std::unique_ptr<Link> link, double seconds) {
  return std::make_unique<DelayedLink>(std::move(link), seconds);
}

}  // namespace haversack
