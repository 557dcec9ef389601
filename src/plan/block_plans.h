// The ways to run one block, each lowered and simulated alone with the lowering and simulator that
// the run uses; so re-run chains, shared re-runs, decodes and transients are facts of a candidate,
// not approximations.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <vector>

#include "exec/cost_profile.h"
#include "graph/graph.h"
#include "plan/actions.h"
#include "schedule/schedule.h"

namespace haversack {

// More values than any block has open.
inline constexpr size_t kMostOpen = 12;
// By index into BlockMenu::open, an index into that value's actions. There are thousands of block
// plans, so this is all that is held of each.
using BlockChoice = std::array<int8_t, kMostOpen>;

struct BlockPlan {
  BlockChoice choice{};
  // By index into BlockMenu::open: encoded; and a product or attention is computed a second time
  // from what comes back.
  std::bitset<kMostOpen> encoded, again;
  int64_t stored = 0;         // bytes from the block's forward to its backward, its input included
  int64_t forward_peak = 0;   // most bytes during its forward, above what earlier blocks stored
  int64_t backward_peak = 0;  // most bytes during its backward, likewise
  double seconds = 0;         // forward and backward

  // Most bytes that `layers` blocks of this plan need, the head aside.
  int64_t PeakOf(int layers) const;
};

struct BlockMenu {
  std::vector<OpenValue> open;
  std::vector<BlockPlan> plans;
  int64_t head_peak = 0;  // most bytes outside the blocks, above what the blocks stored
};

// visit(plan, choice) for every consistent plan of the only block of `graph` (a model of one
// layer).
void ForEachBlockPlan(const Graph& graph, const std::vector<OpenValue>& open, int64_t micro_batch,
                      const std::function<void(const Plan&, const BlockChoice&)>& visit);

// Simulates them at `shape`, priced by `profile`, in no particular order.
BlockMenu EnumerateBlockPlans(const Graph& graph, const BatchShape& shape, ScheduleMode mode,
                              const ActionSet& allowed, const CostProfile& profile);

// The indices of the plans with finite noise that no other beats in every respect, `noise` (by
// plan) included, by ascending seconds. Where more than `most` are left, differences of a few per
// mille up to a few per cent count as none until there are that few; the plan that needs least is
// always among them.
std::vector<int> Undominated(const BlockMenu& menu, const std::vector<double>& noise, int layers,
                             size_t most);

// The plan of a whole model whose block i runs as menu.plans[choice[i]].
Plan ExpandBlockPlans(const Graph& whole, const Graph& one_block, const BlockMenu& menu,
                      const std::vector<int>& choice, int64_t micro_batch);

}  // namespace haversack
