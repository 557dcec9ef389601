#include "train/strategy.h"

#include "base/error.h"
#include "train/local_sgd.h"

namespace haversack {
namespace {

// One process.
class Solo : public Strategy {
 public:
  explicit Solo(const TrainOptions& options) : batch_(options.batch) {}

  int64_t PlannedBatch() const override { return batch_; }
  StepShare Share(const Progress& progress) const override { return {progress.cursor, batch_}; }

  StepTerms Agree(const Progress&, int64_t targets, bool stop) override {
    return {.stop = stop, .targets = targets};
  }

  bool EndStep(Progress& progress, const StepReport& report,
               std::vector<StepReport>& reports) override {
    progress.step += 1;
    progress.cursor += batch_;
    if (!report.skipped) progress.tokens += report.tokens;
    reports.push_back(report);
    return true;
  }

  const Communicator& replicas() const override { return alone_; }

 private:
  int64_t batch_;
  Communicator alone_;
};

}  // namespace

std::unique_ptr<Strategy> MakeSolo(const TrainOptions& options) {
  return std::make_unique<Solo>(options);
}

std::unique_ptr<Strategy> MakeStrategy(const TrainOptions& options, const Graph& graph,
                                       const ParamLayout& layout, const Communicator& world) {
  switch (options.dist.mode) {
    case DistMode::kNone:
      return MakeSolo(options);
    case DistMode::kDdp:
      return MakeDdp(options, layout, world);
    case DistMode::kDiloco:
    case DistMode::kAdloco:
      return std::make_unique<LocalSgd>(options, graph, layout, world);
  }
  HAVERSACK_CHECK(false, "unknown strategy");
}

}  // namespace haversack
