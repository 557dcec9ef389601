#include "train/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "plan/calibration.h"

namespace haversack {
namespace {

// How often a plan that failed its check is replaced by one under a tighter bound.
constexpr int kAttempts = 3;

bool LacksOutliers(const Plan& plan) {
  return std::ranges::any_of(plan.actions, [](const Action& action) {
    return action.kind == Action::Kind::kEncode && action.outliers.empty();
  });
}

// Sequences of the training data, cut short; those without a target are passed over.
class ShortSequences {
 public:
  ShortSequences(const Dataset& data, uint64_t cursor) : data_(data), next_(cursor) {}

  MicroBatch operator()(int64_t index, int64_t tokens) {
    while (static_cast<int64_t>(cursors_.size()) <= index) {
      cursors_.push_back(next_);
      for (uint64_t tries = 0; tries < data_.sequences(); ++tries) {
        cursors_.back() = next_++;
        if (Fill(cursors_.back(), tokens) > 0) break;
      }
    }
    const int64_t valid = std::max<int64_t>(1, Fill(cursors_[index], tokens));
    const auto cut = [&](const std::vector<int32_t>& all) { return std::span(all).first(tokens); };
    return {.ids = cut(batch_.tokens),
            .targets = cut(batch_.targets),
            .positions = cut(batch_.positions),
            .boundaries = boundaries_,
            .loss_scale = 1.0f / static_cast<float>(valid),
            .sample = cursors_[index]};
  }

 private:
  // Returns the valid targets.
  int64_t Fill(uint64_t cursor, int64_t tokens) {
    data_.Fill(cursor, 1, batch_);
    boundaries_.clear();
    for (const int32_t boundary : batch_.boundaries) {
      if (boundary < tokens) boundaries_.push_back(boundary);
    }
    boundaries_.push_back(static_cast<int32_t>(tokens));
    return std::count_if(batch_.targets.begin(), batch_.targets.begin() + tokens,
                         [](int32_t target) { return target >= 0; });
  }

  const Dataset& data_;
  uint64_t next_;
  std::vector<uint64_t> cursors_;
  Batch batch_;
  std::vector<int32_t> boundaries_;
};

class Fitting {
 public:
  Fitting(PreparedRun& run, const AccuracyMemory& memory)
      : run_(run),
        planner_(*run.planner),
        memory_(memory),
        calibration_(run.model->graph, planner_.one_block(), run.model->layout,
                     {.weights = memory.weights,
                      .first = memory.first,
                      .second = memory.second,
                      .basis = memory.basis,
                      .workspace = memory.workspace,
                      .region = memory.region,
                      .region_bytes = memory.region_bytes},
                     run.options.seq, ShortSequences(*run.train, run.progress.cursor)) {}

  void Run() {
    const auto start = std::chrono::steady_clock::now();
    if (calibration_.tokens() == 0) return NoRoom();
    calibration_.MeasureErrors(run_.plan->chosen.plan);
    const std::optional<double> limit = run_.options.noise_share;
    if (planner_.automatic() && limit) {
      calibration_.MeasureGains();
      planner_.Recount(calibration_.region_bytes() + memory_.beyond_bytes);
      Choose(*limit);
    } else {
      Adopt(*run_.plan);
      if (EncodesAny(run_.plan->chosen.plan)) Log("compression: not checked (--noise-share none)");
    }
    run_.plan->predicted_peak_bytes =
        std::max(run_.plan->predicted_peak_bytes,
                 planner_.PeakOf(calibration_.region_bytes() + memory_.beyond_bytes));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    Log(fmt::format("compression measured on micro-batches of {} tokens in {:.1f} s",
                    calibration_.tokens(), seconds.count()));
  }

 private:
  void Log(const std::string& line) { run_.reporter->Line(line); }

  void NoRoom() {
    if (planner_.automatic() && planner_.AllowOnlyExact(run_.budget)) {
      Log("compression: no room to measure its error, so the plan is exact");
      *run_.plan = planner_.Replan(run_.budget);
      return;
    }
    throw UserError(ExitCode::kBudget,
                    "does not fit: --memory {} leaves no room to measure the error of compression, "
                    "and no exact plan fits; raise --memory, or pass --noise-share none with a "
                    "codec without outlier columns, such as --actions recompute,bf16",
                    FormatBytes(run_.budget));
  }

  // Takes a plan with its measured columns.
  void Adopt(RunPlan plan) {
    calibration_.SetOutliers(plan.chosen.plan);
    plan.chosen.schedule = Lower(run_.model->graph, plan.chosen.plan, plan.chosen.schedule.shape,
                                 plan.chosen.schedule.mode);
    *run_.plan = std::move(plan);
  }

  void Choose(double limit) {
    double bound = limit;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      planner_.SetNoise(calibration_.noise(), bound);
      std::optional<RunPlan> plan = planner_.TryReplan(run_.budget);
      if (!plan) break;
      if (!EncodesAny(plan->chosen.plan)) {
        Log("compression: none; the exact plan is the fastest within the accuracy budget");
        *run_.plan = std::move(*plan);
        return;
      }
      const Calibration::Check check = calibration_.CheckPlan(plan->chosen.plan);
      Log(fmt::format(
          "compression: adds {:.2f}% to the gradient's sampling variance (estimated {:.2f}%, "
          "limit {:.2f}%), cosine {:.5f}, bias {:.0f}%",
          100 * check.share, 100 * plan->chosen.noise_share, 100 * limit, check.cosine,
          100 * check.bias));
      if (check.share <= limit) {
        plan->chosen.noise_share = check.share;
        Adopt(std::move(*plan));
        return;
      }
      bound *= 0.8 * limit / check.share;
    }
    if (planner_.AllowOnlyExact(run_.budget)) {
      Log("compression: none; no plan stayed within the accuracy budget");
      *run_.plan = planner_.Replan(run_.budget);
      return;
    }
    throw UserError(ExitCode::kBudget,
                    "does not fit: within --memory {} only plans fit whose compression adds more "
                    "than --noise-share {} to the gradient's sampling variance; raise --memory or "
                    "--noise-share (none allows any)",
                    FormatBytes(run_.budget), limit);
  }

  PreparedRun& run_;
  RunPlanner& planner_;
  AccuracyMemory memory_;
  Calibration calibration_;
};

}  // namespace

bool NeedsCalibration(const PreparedRun& run) {
  const Plan& plan = run.plan->chosen.plan;
  if (run.planner->automatic()) return run.planner->lossy() && plan.name != "keep";
  return LacksOutliers(plan);
}

void FitPlanToAccuracy(PreparedRun& run, const AccuracyMemory& memory) {
  Fitting(run, memory).Run();
}

}  // namespace haversack
