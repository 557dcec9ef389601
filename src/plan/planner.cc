#include "plan/planner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/milp.h"

namespace haversack {
namespace {

// How often the limit is tightened by what the packing was over before the search makes do with the
// best plan that it has.
constexpr int kTightenings = 6;
// Block plans a layer in the integer program: more make it slower, hardly better.
constexpr size_t kMostOptions = 80;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Planner::Planner(const Graph& whole, const Graph& one_block, const BatchShape& shape,
                 ScheduleMode mode, const ActionSet& allowed, const CostProfile& profile)
    : whole_(whole),
      one_block_(one_block),
      shape_(shape),
      mode_(mode),
      profile_(profile),
      menu_(EnumerateBlockPlans(one_block, shape, mode, allowed, profile)) {
  std::vector<double> exact;
  for (const BlockPlan& plan : menu_.plans) exact.push_back(plan.encoded.none() ? 0 : kInfinity);
  noise_.assign(whole.layers, exact);
  Add({.kind = Found::Kind::kKeep, .blocks = {}});
  least_seconds_ = frontier_.back().seconds;
  if (allowed.recompute) Add({.kind = Found::Kind::kRecompute, .blocks = {}});
  MakeGroups();
}

void Planner::SetNoise(const NoiseTable& table, std::optional<double> limit) {
  std::erase_if(frontier_, [](const Found& found) { return found.encodes; });
  noise_limit_ = limit;
  for (int layer = 0; layer < whole_.layers; ++layer) {
    // By (open value, action, again): many block plans share them.
    std::map<std::tuple<size_t, int, bool>, double> shares;
    for (size_t c = 0; c < menu_.plans.size(); ++c) {
      double& noise = noise_[layer][c] = 0;
      if (!limit) continue;
      const BlockPlan& plan = menu_.plans[c];
      for (size_t i = 0; i < menu_.open.size(); ++i) {
        if (!plan.encoded[i]) continue;
        const auto [found, fresh] =
            shares.try_emplace(std::tuple(i, plan.choice[i], plan.again[i]), 0.0);
        if (fresh) {
          const OpenValue& open = menu_.open[i];
          found->second = NoiseShare(table, whole_, one_block_, layer, open,
                                     open.actions[plan.choice[i]], plan.again[i]);
        }
        noise += found->second;
      }
      if (noise > *limit) noise = kInfinity;
    }
  }
  MakeGroups();
}

// Of each layer the plans that no other beats; the one that needs least seeds the search where the
// noise of all layers allows it.
void Planner::MakeGroups() {
  groups_.clear();
  for (int layer = 0; layer < whole_.layers; ++layer) {
    if (layer > 0 && noise_[layer] == noise_[layer - 1]) {
      groups_.push_back(groups_.back());
      continue;
    }
    groups_.push_back(Undominated(menu_, noise_[layer], whole_.layers, kMostOptions));
  }
  const std::vector<int>& first = groups_.front();
  const auto least = std::ranges::min_element(
      first, {}, [&](int c) { return menu_.plans[c].PeakOf(whole_.layers); });
  if (least != first.end()) AddUniform(*least);
}

void Planner::AddUniform(int block_plan) {
  double noise = 0;
  for (int layer = 0; layer < whole_.layers; ++layer) noise += noise_[layer][block_plan];
  if (noise > noise_limit_.value_or(kInfinity)) return;
  Add({.blocks = std::vector<int>(whole_.layers, block_plan), .noise_share = noise});
}

Plan Planner::PlanOf(const Found& found) const {
  switch (found.kind) {
    case Found::Kind::kKeep:
      return KeepPlan(whole_, shape_.sequences);
    case Found::Kind::kRecompute:
      return RecomputePlan(whole_, shape_.sequences);
    case Found::Kind::kBlocks:
      break;
  }
  return ExpandBlockPlans(whole_, one_block_, menu_, found.blocks, shape_.sequences);
}

// Fills in what the lowered plan needs and takes.
void Planner::Add(Found found) {
  const Plan plan = PlanOf(found);
  const Schedule schedule = Lower(whole_, plan, shape_, mode_);
  found.arena_bytes = schedule.arena_bytes;
  found.seconds = profile_.Seconds(whole_, schedule);
  found.encodes = EncodesAny(plan);
  frontier_.push_back(std::move(found));
}

const Planner::Found* Planner::Best(int64_t bytes) const {
  const Found* best = nullptr;
  for (const Found& found : frontier_) {
    if (found.arena_bytes > bytes) continue;
    if (best == nullptr ||
        std::pair(found.seconds, found.arena_bytes) < std::pair(best->seconds, best->arena_bytes)) {
      best = &found;
    }
  }
  return best;
}

std::optional<Planner::Solution> Planner::Solve(int64_t bytes) {
  const Found* seeded = Best(bytes);
  if (seeded == nullptr || seeded->kind != Found::Kind::kKeep) Search(bytes);
  const Found* best = Best(bytes);
  if (best == nullptr) return std::nullopt;
  Solution solution = {.plan = PlanOf(*best),
                       .schedule = {},
                       .seconds = best->seconds,
                       .noise_share = best->noise_share};
  solution.schedule = Lower(whole_, solution.plan, shape_, mode_);
  return solution;
}

// Solves the program for `bytes`, again with less where the packing needs more.
void Planner::Search(int64_t bytes) {
  ChoiceProblem problem;
  for (int layer = 0; layer < whole_.layers; ++layer) {
    std::vector<ChoiceOption> options;
    for (const int c : groups_[layer]) {
      const BlockPlan& plan = menu_.plans[c];
      options.push_back({.cost = plan.seconds,
                         .stored = static_cast<double>(plan.stored),
                         .peaks = {static_cast<double>(plan.forward_peak),
                                   static_cast<double>(plan.backward_peak)},
                         .noise = noise_[layer][c]});
    }
    problem.groups.push_back(std::move(options));
  }
  problem.final_peak = static_cast<double>(menu_.head_peak);
  if (noise_limit_ && *noise_limit_ > 0) problem.noise_limit = noise_limit_;
  int64_t limit = bytes;
  for (int i = 0; i < kTightenings && limit > 0; ++i) {
    problem.memory = static_cast<double>(limit);
    const std::optional<std::vector<int>> choice = SolveChoice(problem);
    if (!choice) break;
    std::vector<int> plans;
    double noise = 0;
    for (int layer = 0; layer < whole_.layers; ++layer) {
      plans.push_back(groups_[layer][(*choice)[layer]]);
      noise += noise_[layer][plans.back()];
    }
    Add({.blocks = std::move(plans), .noise_share = noise});
    const int64_t over = frontier_.back().arena_bytes - bytes;
    if (over <= 0) break;
    limit -= over;
  }
}

}  // namespace haversack
