// The fastest plan within a number of bytes: undominated block plans, one integer program over all
// layers, then the real packing decides; what is over tightens the program's limit until it holds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/block_plans.h"
#include "plan/noise.h"

namespace haversack {

// What the planner needs at one micro-batch size; made once, solved for any number of budgets.
class Planner {
 public:
  // `whole` outlives this. Costs come from `profile`, measured at this shape. Until SetNoise, plans
  // are exact.
  Planner(const Graph& whole, const Graph& one_block, const BatchShape& shape, ScheduleMode mode,
          const ActionSet& allowed, const CostProfile& profile);

  struct Solution {
    Plan plan;
    Schedule schedule;
    double seconds = 0;      // of one micro-batch
    double noise_share = 0;  // by the noise table; 0 for exact plans
  };

  // From now on encoded plans are allowed whose share of V is at most `limit`; nullopt: any. Lossy
  // plans found before are forgotten.
  void SetNoise(const NoiseTable& table, std::optional<double> limit);

  // The fastest plan found whose schedule takes at most `bytes`; nothing when none fits. Every plan
  // found is remembered, so that more bytes, asked for later, are never slower.
  std::optional<Solution> Solve(int64_t bytes);

  // No plan of this size is faster than keeping everything.
  double least_seconds() const { return least_seconds_; }

 private:
  // A plan that was found: what makes it, not the plan, of which there would be megabytes.
  struct Found {
    enum class Kind { kKeep, kRecompute, kBlocks };
    Kind kind = Kind::kBlocks;
    std::vector<int> blocks;  // of kBlocks: by layer, an index into the menu
    int64_t arena_bytes = 0;
    double seconds = 0;
    double noise_share = 0;
    bool encodes = false;
  };

  Plan PlanOf(const Found& found) const;
  void Add(Found found);
  void AddUniform(int block_plan);
  void MakeGroups();
  void Search(int64_t bytes);
  const Found* Best(int64_t bytes) const;

  const Graph& whole_;
  const Graph& one_block_;
  BatchShape shape_;
  ScheduleMode mode_;
  const CostProfile& profile_;
  BlockMenu menu_;
  std::vector<std::vector<double>> noise_;  // by layer and block plan; infinite: not allowed
  std::optional<double> noise_limit_ = 0.0;
  std::vector<std::vector<int>> groups_;  // by layer, the block plans that the program sees
  std::vector<Found> frontier_;
  double least_seconds_ = 0;
};

}  // namespace haversack
