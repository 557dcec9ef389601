// The fastest plan within a number of bytes: undominated block plans, one integer program over all
// layers, then the real packing decides; what is over tightens the program's limit until it holds.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/block_plans.h"

namespace haversack {

// What the planner needs at one micro-batch size; made once, solved for any number of budgets.
class Planner {
 public:
  // `whole` outlives this. Costs come from `profile`, measured at this shape.
  Planner(const Graph& whole, const Graph& one_block, const BatchShape& shape, ScheduleMode mode,
          const CostProfile& profile);

  struct Solution {
    Plan plan;
    Schedule schedule;
    double seconds = 0;  // of one micro-batch
  };
  // The fastest plan found whose schedule takes at most `bytes`; null when not even full
  // recomputation fits. Valid until the next call. Every plan found is remembered, so that more
  // bytes, asked for later, are never slower.
  const Solution* Solve(int64_t bytes);

 private:
  void Add(Plan plan);
  const Solution* Best(int64_t bytes) const;

  const Graph& whole_;
  const Graph& one_block_;
  BatchShape shape_;
  ScheduleMode mode_;
  const CostProfile& profile_;
  BlockMenu menu_;
  std::vector<Solution> frontier_;
};

}  // namespace haversack
