#include "plan/candidates.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "exec/arena.h"

namespace haversack {
namespace {

// Short enough for the start of a run, often enough to shed a hiccup.
constexpr int kRepetitions = 3;
// Seconds of an AdamW step per byte of weights, gradients and moments that it moves. The update is
// a few percent of a step, so a round 10 GB/s will do.
constexpr double kUpdateSecondsPerByte = 1e-10;

Graph OneBlockGraph(ModelConfig config, const BuildOptions& build) {
  config.layers = 1;
  return BuildGraph(config, build);
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

// Costs into `profile`; every distinct product of the schedule has run afterwards.
void MeasureSchedule(const Graph& graph, const ParamLayout& layout, const Schedule& schedule,
                     CostProfile& profile) {
  Arena arena(2 * layout.bytes() + schedule.arena_bytes + 4096);
  ModelState state;
  state.weights = reinterpret_cast<float*>(arena.Take("weights", layout.bytes()));
  state.grads = reinterpret_cast<float*>(arena.Take("gradients", layout.bytes()));
  Executor executor(graph, layout, state, arena.Take("schedule", schedule.arena_bytes),
                    schedule.arena_bytes);
  const BlankBatch blank(schedule.shape);
  double loss = 0;
  const MicroBatch batch = {.ids = blank.ids,
                            .targets = blank.targets,
                            .positions = blank.positions,
                            .boundaries = blank.boundaries,
                            .loss_scale = 1,
                            .loss_sum = &loss};
  profile.Measure(graph, schedule, executor, batch, kRepetitions);
}

}  // namespace

StateBytes TrainingState(const ParamLayout& layout, bool fused_update) {
  return {.weights = layout.bytes(),
          .gradients = fused_update ? 0 : layout.bytes(),
          .moments = 2 * layout.bytes()};
}

Candidates::Candidates(const ModelConfig& config, const Graph& graph, const ParamLayout& layout,
                       const BuildOptions& build, const PlanRequest& request)
    : graph_(graph),
      layout_(layout),
      request_(request),
      one_block_(OneBlockGraph(config, build)),
      one_block_layout_(one_block_),
      mode_(request.fused_update ? ScheduleMode::kFusedUpdate : ScheduleMode::kTrain),
      state_bytes_(TrainingState(layout, request.fused_update).total()) {
  const int64_t fixed = request.micro_batch.value_or(0);
  if (fixed > 0 && request.batch % fixed != 0) {
    throw UserError(ExitCode::kUsage, "--micro-batch {} does not divide --batch {}", fixed,
                    request.batch);
  }
  for (int64_t micro_batch = request.batch; micro_batch >= 1; --micro_batch) {
    if (request.batch % micro_batch != 0 || (fixed > 0 && micro_batch != fixed)) continue;
    if (request.fused_update && micro_batch != request.batch) continue;
    Size size;
    size.micro_batch = micro_batch;
    const bool automatic = request.plan_name == "auto" && !request.plan;
    Plan least = automatic ? RecomputePlan(graph, micro_batch) : FixedPlan(graph, micro_batch);
    Schedule schedule = Lower(graph, least, ShapeOf(size), mode_);
    size.least_bytes = schedule.arena_bytes;
    const int64_t most =
        automatic ? Lower(graph, KeepPlan(graph, micro_batch), ShapeOf(size), mode_).arena_bytes
                  : size.least_bytes;
    largest_arena_bytes_ = std::max(largest_arena_bytes_, state_bytes_ + most);
    if (sizes_.empty() || size.least_bytes < smallest_.schedule.arena_bytes) {
      smallest_ = MakeCandidate(std::move(least), std::move(schedule), 0);
    }
    sizes_.push_back(std::move(size));
  }
  if (sizes_.empty()) {
    throw UserError(ExitCode::kUsage,
                    "--fused-update needs a micro-batch equal to --batch {}, not {}: accumulation "
                    "needs all gradients",
                    request.batch, fixed);
  }
}

BatchShape Candidates::ShapeOf(const Size& size) const {
  return {.sequences = size.micro_batch, .seq = request_.seq};
}

Plan Candidates::FixedPlan(const Graph& graph, int64_t micro_batch) const {
  if (request_.plan) {
    Plan plan = *request_.plan;
    plan.micro_batch = micro_batch;
    return plan;
  }
  return request_.plan_name == "recompute" ? RecomputePlan(graph, micro_batch)
                                           : KeepPlan(graph, micro_batch);
}

Candidate Candidates::MakeCandidate(Plan plan, Schedule schedule,
                                    double micro_batch_seconds) const {
  const auto micro_batches = static_cast<double>(request_.batch / schedule.shape.sequences);
  return {.plan = std::move(plan),
          .schedule = std::move(schedule),
          .state_bytes = state_bytes_,
          .step_seconds = micro_batches * micro_batch_seconds +
                          kUpdateSecondsPerByte * 7 * static_cast<double>(layout_.bytes())};
}

void Candidates::MeasureSize(Size& size, CostProfile& profile) {
  profile_ = &profile;
  if (size.measured) return;
  size.measured = true;
  // Everything that any plan can run: a re-run is priced as the first run, but for cheap ops, which
  // the keep plan re-runs.
  MeasureSchedule(one_block_, one_block_layout_,
                  Lower(one_block_, KeepPlan(one_block_, size.micro_batch), ShapeOf(size),
                        ScheduleMode::kTrain),
                  profile);
}

void Candidates::WarmUp(CostProfile& profile) {
  for (Size& size : sizes_) {
    if (size.micro_batch == smallest_.plan.micro_batch) MeasureSize(size, profile);
  }
}

void Candidates::Measure(int64_t arena_budget, CostProfile& profile) {
  for (Size& size : sizes_) {
    if (state_bytes_ + size.least_bytes > arena_budget) continue;
    MeasureSize(size, profile);
    if (request_.plan_name == "auto" && !request_.plan && !size.planner) {
      size.planner = std::make_unique<Planner>(graph_, one_block_, ShapeOf(size), mode_, profile);
    }
  }
}

std::optional<Candidate> Candidates::Choose(int64_t arena_budget) {
  std::optional<Candidate> best;
  const int64_t bytes = arena_budget - state_bytes_;
  for (const Size& size : sizes_) {
    if (!size.measured || size.least_bytes > bytes) continue;
    Candidate candidate;
    if (size.planner) {
      const Planner::Solution* solution = size.planner->Solve(bytes);
      if (solution == nullptr) continue;
      candidate = MakeCandidate(solution->plan, solution->schedule, solution->seconds);
    } else {
      Plan plan = FixedPlan(graph_, size.micro_batch);
      Schedule schedule = Lower(graph_, plan, ShapeOf(size), mode_);
      const double seconds = profile_->Seconds(graph_, schedule);
      candidate = MakeCandidate(std::move(plan), std::move(schedule), seconds);
    }
    if (!best || std::pair(candidate.step_seconds, candidate.arena_bytes()) <
                     std::pair(best->step_seconds, best->arena_bytes())) {
      best = std::move(candidate);
    }
  }
  return best;
}

}  // namespace haversack
