// Synchronous data parallel: the ranks split every batch and hold the same model. Gradients are
// summed over ranks while the last backward pass still runs.
#include <optional>

#include "base/error.h"
#include "dist/agreement.h"
#include "dist/owner_exchange.h"
#include "train/strategy.h"

namespace haversack {
namespace {

constexpr int kTag = 100;

// The sum of all ranks' gradients, in place.
class GradientJob : public ExchangeJob {
 public:
  explicit GradientJob(float* grads) : grads_(grads) {}

  void Contribute(int64_t begin, int64_t count, float* out) override {
    std::copy_n(grads_ + begin, count, out);
  }
  void Apply(int64_t begin, int64_t count, const float* result) override {
    std::copy_n(result, count, grads_ + begin);
  }

 private:
  float* grads_;
};

class Ddp : public Strategy {
 public:
  Ddp(const TrainOptions& options, const ParamLayout& layout, const Communicator& world)
      : batch_(options.batch),
        count_(layout.grad_total),
        world_(world),
        wire_(world.alone() ? WireFormat() : WireFormat::Parse(options.dist.transport)),
        weights_(world.size(), 1.0) {}

  int64_t StateBytes() const override {
    return world_.alone() ? 0 : OwnerExchange::BufferBytes(count_, world_.size(), wire_);
  }

  void Open(const OpenStrategy& open) override {
    job_.emplace(open.state.grads);
    if (!world_.alone()) exchange_.emplace(world_, count_, wire_, open.memory, kTag);
  }

  const Communicator& replicas() const override { return world_; }

  int64_t PlannedBatch() const override { return LargestShare(batch_, world_.size()); }
  StepShare Share(const Progress& progress) const override {
    const BatchShare share = ShareOf(batch_, world_.rank(), world_.size());
    return {progress.cursor + static_cast<uint64_t>(share.begin), share.count()};
  }

  StepTerms Agree(const Progress& progress, int64_t targets, bool stop) override {
    struct Header {
      int64_t step, targets;
      uint64_t cursor;
      int64_t stop;
    };
    StepTerms terms;
    const Header mine = {progress.step, targets, progress.cursor, stop ? 1 : 0};
    const std::vector<Header> all =
        world_.AllGather(mine, fmt::format("step {}", progress.step + 1));
    for (int r = 0; r < world_.size(); ++r) {
      HAVERSACK_CHECK(all[r].step == mine.step && all[r].cursor == mine.cursor,
                      "rank {} is at step {}, sequence {}; rank {} at step {}, sequence {}",
                      world_.world_rank(r), all[r].step, all[r].cursor,
                      world_.world_rank(world_.rank()), mine.step, mine.cursor);
      terms.targets += all[r].targets;
      terms.stop = terms.stop || all[r].stop != 0;
    }
    return terms;
  }

  bool overlaps() const override { return !world_.alone(); }
  void BeginReduce() override {
    if (exchange_) exchange_->Start(*job_, weights_);
  }
  void Advance(int64_t from) override {
    if (exchange_) exchange_->Advance(from);
  }

  void Reduce(const Progress& progress, double& loss_sum) override {
    if (!exchange_) return;
    exchange_->Finish(fmt::format("the gradients of step {}", progress.step + 1));
    world_.traffic().syncs += 1;
    loss_sum = world_.Sum(loss_sum, fmt::format("the loss of step {}", progress.step + 1));
  }

  bool EndStep(Progress& progress, const StepReport& report,
               std::vector<StepReport>& reports) override {
    progress.step += 1;
    progress.cursor += batch_;
    if (!report.skipped) progress.tokens += report.tokens;
    reports.push_back(report);
    const Traffic& traffic = world_.traffic();
    reports.back().dist = {.round = progress.step - 1,
                           .batch = batch_,
                           .workers = world_.size(),
                           .syncs = traffic.syncs,
                           .bytes_sent = traffic.sent_bytes,
                           .bytes_received = traffic.received_bytes,
                           .wait_s = traffic.wait_seconds};
    return true;
  }

 private:
  int64_t batch_;
  int64_t count_;
  Communicator world_;
  WireFormat wire_;
  std::vector<double> weights_;
  std::optional<GradientJob> job_;
  std::optional<OwnerExchange> exchange_;
};

}  // namespace

std::unique_ptr<Strategy> MakeDdp(const TrainOptions& options, const ParamLayout& layout,
                                  const Communicator& world) {
  return std::make_unique<Ddp>(options, layout, world);
}

}  // namespace haversack
