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

// Bytes that an update reads and writes: weights and moments both ways, gradients once.
int64_t UpdateTraffic(const StateBytes& state) {
  return 2 * (state.weights + state.moments) + state.gradients;
}

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

// Costs into `profile`: all of the first schedule, so that whatever the libraries allocate for its
// products is resident afterwards, and what is not known of the others.
void MeasureSchedules(const Graph& graph, const ParamLayout& layout,
                      const std::vector<Schedule>& schedules, CostProfile& profile) {
  int64_t bytes = 0;
  for (const Schedule& schedule : schedules) bytes = std::max(bytes, schedule.arena_bytes);
  Arena arena(layout.bytes() + layout.grad_bytes() + layout.projection_bytes() + bytes + 4096);
  const ModelState state = TakeModelState(arena, layout, nullptr, true);
  Executor executor(graph, layout, state, arena.Take("schedule", bytes), bytes);
  const BlankBatch blank(schedules.front().shape);
  double loss = 0;
  const MicroBatch batch = {.ids = blank.ids,
                            .targets = blank.targets,
                            .positions = blank.positions,
                            .boundaries = blank.boundaries,
                            .loss_scale = 1,
                            .loss_sum = &loss};
  for (const Schedule& schedule : schedules) {
    profile.Measure(graph, schedule, executor, batch, kRepetitions,
                    &schedule == &schedules.front() ? 1 : 0);
  }
}

}  // namespace

StateBytes TrainingState(const ParamLayout& layout, const MomentLayout& moments,
                         bool fused_update) {
  return {.weights = layout.bytes(),
          .gradients = fused_update ? 0 : layout.grad_bytes(),
          .moments = 2 * moments.bytes(),
          .projections = layout.projection_bytes()};
}

Candidates::Candidates(const ModelConfig& config, const Graph& graph, const ParamLayout& layout,
                       const BuildOptions& build, const PlanRequest& request)
    : graph_(graph),
      request_(request),
      one_block_(OneBlockGraph(config, build)),
      one_block_layout_(one_block_),
      mode_(request.fused_update ? ScheduleMode::kFusedUpdate : ScheduleMode::kTrain),
      state_(TrainingState(layout, MomentLayout(graph, request.moments), request.fused_update)) {
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
    const Plan most =
        request.automatic() ? KeepPlan(graph, micro_batch) : FixedPlan(graph, micro_batch);
    largest_arena_bytes_ =
        std::max(largest_arena_bytes_,
                 state_.total() + Lower(graph, most, ShapeOf(size), mode_).arena_bytes);
    sizes_.push_back(std::move(size));
  }
  if (sizes_.empty()) {
    throw UserError(ExitCode::kUsage,
                    "--fused-update needs a micro-batch equal to --batch {}, not {}: accumulation "
                    "needs all gradients",
                    request.batch, fixed);
  }
  if (request.automatic()) {
    bytes_menu_ = EnumerateBlockPlans(one_block_, ShapeOf(sizes_.back()), mode_, request.actions,
                                      CostProfile());
  }
  SetNoise(TypicalNoise(graph, one_block_, request.actions), request.noise_limit);
}

void Candidates::SetNoise(const NoiseTable& table, std::optional<double> limit) {
  noise_ = table;
  request_.noise_limit = limit;
  for (Size& size : sizes_) {
    if (size.planner && request_.actions.lossy())
      size.planner->SetNoise(noise_, request_.noise_limit);
  }
  FindSmallest();
}

void Candidates::FindSmallest() {
  // What a limit on noise allows is known only once it is measured: till then exact plans count.
  const bool any = !request_.noise_limit.has_value();
  bool first = true;
  for (Size& size : sizes_) {
    const bool automatic = request_.automatic();
    Plan plan = automatic ? LeastPlan(size.micro_batch, any) : FixedPlan(graph_, size.micro_batch);
    Schedule schedule = Lower(graph_, plan, ShapeOf(size), mode_);
    size.least_bytes = schedule.arena_bytes;
    if (automatic && !any && request_.actions.lossy()) {
      const Plan encoded = LeastPlan(size.micro_batch, true);
      size.least_bytes =
          std::min(size.least_bytes, Lower(graph_, encoded, ShapeOf(size), mode_).arena_bytes);
    }
    least_arena_bytes_ =
        std::min(first ? INT64_MAX : least_arena_bytes_, state_.total() + size.least_bytes);
    if (first || schedule.arena_bytes < smallest_.schedule.arena_bytes) {
      smallest_ = MakeCandidate(std::move(plan), std::move(schedule), 0);
    }
    first = false;
  }
}

// All blocks run as the one that needs least, of the exact ones or of any.
Plan Candidates::LeastPlan(int64_t micro_batch, bool any) const {
  int least = -1;
  for (int c = 0; c < static_cast<int>(bytes_menu_.plans.size()); ++c) {
    const BlockPlan& plan = bytes_menu_.plans[c];
    if (!any && plan.encoded.any()) continue;
    if (least < 0 || plan.PeakOf(graph_.layers) < bytes_menu_.plans[least].PeakOf(graph_.layers)) {
      least = c;
    }
  }
  return ExpandBlockPlans(graph_, one_block_, bytes_menu_, std::vector<int>(graph_.layers, least),
                          micro_batch);
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

double Candidates::StepSeconds(int64_t micro_batch, double micro_batch_seconds) const {
  return static_cast<double>(request_.batch / micro_batch) * micro_batch_seconds +
         kUpdateSecondsPerByte * static_cast<double>(UpdateTraffic(state_));
}

Candidate Candidates::MakeCandidate(Plan plan, Schedule schedule,
                                    double micro_batch_seconds) const {
  const double seconds = StepSeconds(schedule.shape.sequences, micro_batch_seconds);
  return {.plan = std::move(plan),
          .schedule = std::move(schedule),
          .state_bytes = state_.total(),
          .step_seconds = seconds,
          .noise_share = 0};
}

Candidate Candidates::MakeFixed(const Size& size) const {
  Plan plan = FixedPlan(graph_, size.micro_batch);
  Schedule schedule = Lower(graph_, plan, ShapeOf(size), mode_);
  const double seconds = profile_->Seconds(graph_, schedule);
  return MakeCandidate(std::move(plan), std::move(schedule), seconds);
}

void Candidates::MeasureSize(Size& size, CostProfile& profile) {
  profile_ = &profile;
  if (size.measured) return;
  size.measured = true;
  // Almost everything that an exact plan can run is in the keep plan: a re-run is priced as the
  // first run, but for cheap ops, which the keep plan re-runs.
  std::vector<Schedule> schedules;
  CostProfile covered;
  const auto add = [&](const Plan& plan, const BlockChoice&) {
    Schedule schedule = LowerWithoutOffsets(one_block_, plan, ShapeOf(size), ScheduleMode::kTrain);
    if (covered.Knows(one_block_, schedule)) return;
    for (const Instr& instr : schedule.instrs) covered.Set(one_block_, schedule, instr, 0);
    if (!schedules.empty() && profile.Knows(one_block_, schedule)) return;
    AssignOffsets(schedule);
    schedules.push_back(std::move(schedule));
  };
  add(KeepPlan(one_block_, size.micro_batch), {});
  if (request_.automatic()) {
    ForEachBlockPlan(one_block_, bytes_menu_.open, size.micro_batch, add);
  } else if (request_.plan) {
    for (const Plan& plan : PlansOfLayers(*request_.plan, size.micro_batch)) add(plan, {});
  }
  MeasureSchedules(one_block_, one_block_layout_, schedules, profile);
}

// The block plans of a plan for the whole model.
std::vector<Plan> Candidates::PlansOfLayers(const Plan& whole, int64_t micro_batch) const {
  std::vector<Plan> plans;
  for (int layer = 0; layer < graph_.layers; ++layer) {
    Plan plan = KeepPlan(one_block_, micro_batch);
    for (const OpenValue& open : OpenValues(one_block_, ActionSet())) {
      plan.actions[open.value] = whole.actions[ValueInLayer(graph_, one_block_, open.value, layer)];
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

void Candidates::WarmUp(CostProfile& profile) {
  for (Size& size : sizes_) {
    if (size.micro_batch == smallest_.plan.micro_batch) MeasureSize(size, profile);
  }
}

void Candidates::Measure(int64_t arena_budget, CostProfile& profile) {
  for (Size& size : sizes_) {
    if (state_.total() + size.least_bytes > arena_budget) continue;
    MeasureSize(size, profile);
    if (request_.automatic() && !size.planner) {
      size.planner = std::make_unique<Planner>(graph_, one_block_, ShapeOf(size), mode_,
                                               request_.actions, profile);
      if (request_.actions.lossy()) size.planner->SetNoise(noise_, request_.noise_limit);
    }
  }
}

std::optional<Candidate> Candidates::Choose(int64_t arena_budget) {
  std::optional<Candidate> best;
  const int64_t bytes = arena_budget - state_.total();
  for (const Size& size : sizes_) {
    if (!size.measured || size.least_bytes > bytes) continue;
    Candidate candidate;
    if (size.planner) {
      // The program is not asked for a size that cannot win.
      if (best &&
          StepSeconds(size.micro_batch, size.planner->least_seconds()) > best->step_seconds) {
        continue;
      }
      std::optional<Planner::Solution> solution = size.planner->Solve(bytes);
      if (!solution) continue;
      candidate = MakeCandidate(std::move(solution->plan), std::move(solution->schedule),
                                solution->seconds);
      candidate.noise_share = solution->noise_share;
    } else {
      candidate = MakeFixed(size);
    }
    if (!best || std::pair(candidate.step_seconds, candidate.arena_bytes()) <
                     std::pair(best->step_seconds, best->arena_bytes())) {
      best = std::move(candidate);
    }
  }
  return best;
}

}  // namespace haversack
