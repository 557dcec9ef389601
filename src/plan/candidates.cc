#include "plan/candidates.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "exec/arena.h"

namespace haversack {
namespace {

// Short enough for the start of a run, often enough to shed a hiccup.
constexpr int kRepetitions = 2;
// Seconds of an AdamW step per byte of weight, gradient and moments that it moves; the update is a few
// percent of a step, so a round figure of 10 GB/s will do.
constexpr double kUpdateSecondsPerByte = 1e-10;

std::vector<Plan> PlansFor(const Graph& graph, const PlanRequest& request, int64_t micro_batch) {
  if (request.plan) {
    Plan plan = *request.plan;
    plan.micro_batch = micro_batch;
    return {std::move(plan)};
  }
  std::vector<Plan> plans;
  if (request.plan_name != "recompute") plans.push_back(KeepPlan(graph, micro_batch));
  if (request.plan_name != "keep") plans.push_back(RecomputePlan(graph, micro_batch));
  return plans;
}

// A micro-batch of one document a sequence, whose content does not matter.
struct BlankBatch {
  explicit BlankBatch(const BatchShape& shape)
      : ids(shape.tokens(), 0), targets(shape.tokens(), 0), positions(shape.tokens()) {
    for (int64_t t = 0; t < shape.tokens(); ++t) {
      positions[t] = static_cast<int32_t>(t % shape.seq);
      if (positions[t] == 0) boundaries.push_back(static_cast<int32_t>(t));
    }
    boundaries.push_back(static_cast<int32_t>(shape.tokens()));
  }
  std::vector<int32_t> ids, targets, positions, boundaries;
};

void MeasureCandidate(const Graph& graph, const ParamLayout& layout, const Candidate& candidate,
                      CostProfile& profile) {
  Arena arena(candidate.arena_bytes() + 4096);
  ModelState state;
  state.weights = reinterpret_cast<float*>(arena.Take("weights", layout.bytes()));
  if (candidate.schedule.mode == ScheduleMode::kTrain) {
    state.grads = reinterpret_cast<float*>(arena.Take("gradients", layout.bytes()));
  }
  Executor executor(graph, layout, state, arena.Take("schedule", candidate.schedule.arena_bytes),
                    candidate.schedule.arena_bytes);
  const BlankBatch blank(candidate.schedule.shape);
  double loss = 0;
  const MicroBatch batch = {.ids = blank.ids,
                            .targets = blank.targets,
                            .positions = blank.positions,
                            .boundaries = blank.boundaries,
                            .loss_scale = 1,
                            .loss_sum = &loss};
  profile.Measure(graph, candidate.schedule, executor, batch, kRepetitions);
}

}  // namespace

StateBytes TrainingState(const ParamLayout& layout, bool fused_update) {
  return {.weights = layout.bytes(),
          .gradients = fused_update ? 0 : layout.bytes(),
          .moments = 2 * layout.bytes()};
}

std::vector<Candidate> EnumerateCandidates(const Graph& graph, const ParamLayout& layout,
                                           const PlanRequest& request) {
  const int64_t fixed = request.micro_batch.value_or(0);
  if (fixed > 0 && request.batch % fixed != 0) {
    throw UserError(ExitCode::kUsage, "--micro-batch {} does not divide --batch {}", fixed,
                    request.batch);
  }
  const ScheduleMode mode =
      request.fused_update ? ScheduleMode::kFusedUpdate : ScheduleMode::kTrain;
  std::vector<Candidate> candidates;
  for (int64_t micro_batch = request.batch; micro_batch >= 1; --micro_batch) {
    if (request.batch % micro_batch != 0 || (fixed > 0 && micro_batch != fixed)) continue;
    if (request.fused_update && micro_batch != request.batch) continue;
    for (Plan& plan : PlansFor(graph, request, micro_batch)) {
      Candidate candidate;
      candidate.schedule =
          Lower(graph, plan, {.sequences = micro_batch, .seq = request.seq}, mode);
      candidate.plan = std::move(plan);
      candidate.state_bytes = TrainingState(layout, request.fused_update).total();
      candidates.push_back(std::move(candidate));
    }
  }
  return candidates;
}

int ChooseCandidate(const std::vector<Candidate>& candidates, int64_t arena_budget) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(candidates.size()); ++i) {
    if (candidates[i].arena_bytes() > arena_budget) continue;
    if (best >= 0) {
      const auto rank = [&](int c) {
        return std::pair(candidates[c].step_seconds, candidates[c].arena_bytes());
      };
      if (rank(i) >= rank(best)) continue;
    }
    best = i;
  }
  return best;
}

int SmallestCandidate(const std::vector<Candidate>& candidates) {
  HAVERSACK_CHECK(!candidates.empty(), "no candidates");
  const auto least = std::min_element(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.arena_bytes() < b.arena_bytes(); });
  return static_cast<int>(least - candidates.begin());
}

void PredictSeconds(const Graph& graph, const ParamLayout& layout, int64_t batch,
                    int64_t arena_budget, CostProfile& profile,
                    std::vector<Candidate>& candidates) {
  for (Candidate& candidate : candidates) {
    if (candidate.arena_bytes() > arena_budget) continue;
    MeasureCandidate(graph, layout, candidate, profile);
    const auto micro_batches =
        static_cast<double>(batch / candidate.schedule.shape.sequences);
    candidate.step_seconds = micro_batches * profile.Seconds(graph, candidate.schedule) +
                             kUpdateSecondsPerByte * 7 * static_cast<double>(layout.bytes());
  }
}

}  // namespace haversack
