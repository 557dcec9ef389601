// The ways to run one block, each lowered and simulated alone with the lowering and simulator that
// the run uses; so re-run chains, shared re-runs and transients are facts of a candidate, not
// approximations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/cost_profile.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace haversack {

struct BlockPlan {
  // By ValueId of the one-block graph; meaningful for its block's saved values.
  std::vector<Action> actions;
  int64_t stored = 0;         // bytes from the block's forward to its backward, its input included
  int64_t forward_peak = 0;   // most bytes during its forward, above what earlier blocks stored
  int64_t backward_peak = 0;  // most bytes during its backward, likewise
  double seconds = 0;         // forward and backward
};

struct BlockMenu {
  std::vector<BlockPlan> plans;  // undominated, by ascending seconds
  int64_t head_peak = 0;         // most bytes outside the blocks, above what the blocks stored
};

// Enumerates the plans of the only block of `graph` (a model of one layer) at `shape`, priced by
// `profile`, and drops those that another plan beats in every respect.
BlockMenu EnumerateBlockPlans(const Graph& graph, const BatchShape& shape, ScheduleMode mode,
                              const CostProfile& profile);

// The plan of a whole model whose block i runs as `choice[i]`.
Plan ExpandBlockPlans(const Graph& whole, const Graph& one_block, const BlockMenu& menu,
                      const std::vector<int>& choice, int64_t micro_batch);

}  // namespace haversack
