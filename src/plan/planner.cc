#include "plan/planner.h"

#include <utility>
#include <vector>

#include "plan/milp.h"

namespace haversack {
namespace {

// How often the limit is tightened by what the packing was over before the search makes do with the
// best plan that it has.
constexpr int kTightenings = 6;

}  // namespace

Planner::Planner(const Graph& whole, const Graph& one_block, const BatchShape& shape,
                 ScheduleMode mode, const CostProfile& profile)
    : whole_(whole),
      one_block_(one_block),
      shape_(shape),
      mode_(mode),
      profile_(profile),
      menu_(EnumerateBlockPlans(one_block, shape, mode, profile)) {
  Add(KeepPlan(whole, shape.sequences));
  Add(RecomputePlan(whole, shape.sequences));
  for (int c = 0; c < static_cast<int>(menu_.plans.size()); ++c) {
    Add(ExpandBlockPlans(whole, one_block, menu_, std::vector<int>(whole.layers, c),
                         shape.sequences));
  }
}

void Planner::Add(Plan plan) {
  Solution solution;
  solution.schedule = Lower(whole_, plan, shape_, mode_);
  solution.plan = std::move(plan);
  solution.seconds = profile_.Seconds(whole_, solution.schedule);
  frontier_.push_back(std::move(solution));
}

const Planner::Solution* Planner::Best(int64_t bytes) const {
  const Solution* best = nullptr;
  for (const Solution& solution : frontier_) {
    if (solution.schedule.arena_bytes > bytes) continue;
    if (best == nullptr || std::pair(solution.seconds, solution.schedule.arena_bytes) <
                               std::pair(best->seconds, best->schedule.arena_bytes)) {
      best = &solution;
    }
  }
  return best;
}

const Planner::Solution* Planner::Solve(int64_t bytes) {
  const Solution* seeded = Best(bytes);
  if (seeded != nullptr && seeded->plan.name == "keep") return seeded;
  ChoiceProblem problem;
  std::vector<ChoiceOption> options;
  for (const BlockPlan& plan : menu_.plans) {
    options.push_back({.cost = plan.seconds,
                       .stored = static_cast<double>(plan.stored),
                       .peaks = {static_cast<double>(plan.forward_peak),
                                 static_cast<double>(plan.backward_peak)}});
  }
  problem.groups.assign(whole_.layers, options);
  problem.final_peak = static_cast<double>(menu_.head_peak);
  int64_t limit = bytes;
  for (int i = 0; i < kTightenings && limit > 0; ++i) {
    problem.memory = static_cast<double>(limit);
    const std::optional<std::vector<int>> choice = SolveChoice(problem);
    if (!choice) break;
    Add(ExpandBlockPlans(whole_, one_block_, menu_, *choice, shape_.sequences));
    const int64_t over = frontier_.back().schedule.arena_bytes - bytes;
    if (over <= 0) break;
    limit -= over;
  }
  return Best(bytes);
}

}  // namespace haversack
