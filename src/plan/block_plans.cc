#include "plan/block_plans.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "plan/noise.h"

namespace haversack {
namespace {

bool InBlock(const Graph& graph, const Instr& instr) {
  if (instr.node >= 0) return graph.nodes[instr.node].layer >= 0;
  return instr.value >= 0;  // only blocks' values are encoded
}

// A value that the block stores for its own backward: of its own, or its input. Its output, which
// the next block stores as an input, is not.
bool StoredByBlock(const Graph& graph, ValueId v) {
  const Value& value = graph.values[v];
  const NodeId last_reader = value.consumers.empty() ? value.producer : value.consumers.back();
  return graph.nodes[last_reader].layer >= 0;
}

int64_t StoredBytes(const Schedule& schedule, const Graph& graph) {
  int64_t stored = 0;
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.kept && StoredByBlock(graph, buffer.value)) stored += buffer.bytes;
  }
  return stored;
}

// The loss: the last instruction of the forward pass.
int LossInstruction(const Schedule& schedule, const Graph& graph) {
  const auto loss = static_cast<NodeId>(graph.nodes.size()) - 1;
  int i = 0;
  while (schedule.instrs[i].node != loss) ++i;
  return i;
}

BlockPlan Simulate(const Graph& graph, const Plan& plan, const BatchShape& shape, ScheduleMode mode,
                   const CostProfile& profile, BlockMenu& menu) {
  const Schedule schedule = LowerWithoutOffsets(graph, plan, shape, mode);
  const std::vector<LiveBytes> live = SimulateMemory(schedule);
  const int loss = LossInstruction(schedule, graph);
  BlockPlan block;
  block.stored = StoredBytes(schedule, graph);
  bool after_block = false;
  for (int i = 0; i < static_cast<int>(schedule.instrs.size()); ++i) {
    const Instr& instr = schedule.instrs[i];
    if (!InBlock(graph, instr)) {
      if (after_block) menu.head_peak = std::max(menu.head_peak, live[i].total - block.stored);
      continue;
    }
    after_block = true;
    block.seconds += profile.Seconds(graph, schedule, instr);
    int64_t& peak = i < loss ? block.forward_peak : block.backward_peak;
    peak = std::max(peak, live[i].total);
  }
  return block;
}

// Whether the block computes a product or attention a second time from `v`: a value on the way up
// from one that is recomputed, before anything stored.
bool ComputedAgainFrom(const Graph& graph, const Plan& plan, ValueId v) {
  // By value: some costly recomputation below it stems from `v`.
  std::vector<bool> stems(graph.values.size(), false);
  stems[v] = true;
  for (const Node& node : graph.nodes) {
    if (node.layer < 0) continue;
    const bool from = std::ranges::any_of(node.inputs, [&](ValueId i) { return stems[i]; });
    if (!from) continue;
    for (const ValueId output : node.outputs) {
      const Value& value = graph.values[output];
      const bool again = !value.saved || plan.actions[output].kind == Action::Kind::kRecompute;
      if (!again || graph.IsRowStatistic(output)) continue;
      if (value.saved && !graph.IsCheap(output)) return true;
      stems[output] = true;
    }
  }
  return false;
}

}  // namespace

int64_t BlockPlan::PeakOf(int layers) const {
  return (layers - 1) * stored + std::max(forward_peak, backward_peak);
}

void ForEachBlockPlan(const Graph& graph, const std::vector<OpenValue>& open, int64_t micro_batch,
                      const std::function<void(const Plan&, const BlockChoice&)>& visit) {
  HAVERSACK_CHECK(graph.layers == 1, "{} layers", graph.layers);
  HAVERSACK_CHECK(open.size() <= kMostOpen, "{} open values", open.size());
  Plan plan = KeepPlan(graph, micro_batch);
  BlockChoice choice{};
  while (true) {
    for (size_t i = 0; i < open.size(); ++i) {
      plan.actions[open[i].value] = open[i].actions[choice[i]];
    }
    if (WhyInconsistent(graph, plan).empty()) visit(plan, choice);
    size_t i = 0;
    while (i < open.size() && ++choice[i] == static_cast<int>(open[i].actions.size())) {
      choice[i++] = 0;
    }
    if (i == open.size()) return;
  }
}

BlockMenu EnumerateBlockPlans(const Graph& graph, const BatchShape& shape, ScheduleMode mode,
                              const ActionSet& allowed, const CostProfile& profile) {
  BlockMenu menu;
  menu.open = OpenValues(graph, allowed);
  const auto visit = [&](const Plan& plan, const BlockChoice& choice) {
    BlockPlan block = Simulate(graph, plan, shape, mode, profile, menu);
    block.choice = choice;
    for (size_t i = 0; i < menu.open.size(); ++i) {
      const ValueId v = menu.open[i].value;
      block.encoded[i] = plan.actions[v].kind == Action::Kind::kEncode;
      block.again[i] = block.encoded[i] && ComputedAgainFrom(graph, plan, v);
    }
    menu.plans.push_back(block);
  };
  ForEachBlockPlan(graph, menu.open, shape.sequences, visit);
  menu.plans.shrink_to_fit();
  return menu;
}

std::vector<int> Undominated(const BlockMenu& menu, const std::vector<double>& noise, int layers,
                             size_t most) {
  std::vector<int> order;
  for (size_t i = 0; i < menu.plans.size(); ++i) {
    if (std::isfinite(noise[i])) order.push_back(static_cast<int>(i));
  }
  if (order.empty()) return order;
  const auto rank = [&](int i) {
    const BlockPlan& plan = menu.plans[i];
    return std::tuple(plan.seconds, plan.stored, std::max(plan.forward_peak, plan.backward_peak));
  };
  std::ranges::stable_sort(order, {}, rank);
  const auto smallest = std::ranges::min_element(
      order, {}, [&](int i) { return std::pair(menu.plans[i].PeakOf(layers), noise[i]); });
  const int least = *smallest;
  std::vector<int> kept;
  for (double slack = 1;; slack = slack == 1 ? 1.001 : 1 + 2 * (slack - 1)) {
    const auto dominates = [&](int i, int j) {
      const BlockPlan& a = menu.plans[i];
      const BlockPlan& b = menu.plans[j];
      const auto below = [&](auto x, auto y) {
        return static_cast<double>(x) <= slack * static_cast<double>(y);
      };
      return below(a.seconds, b.seconds) && below(a.stored, b.stored) &&
             below(a.forward_peak, b.forward_peak) && below(a.backward_peak, b.backward_peak) &&
             below(noise[i], noise[j] + (slack - 1) * 1e-4);
    };
    kept.clear();
    for (const int i : order) {
      const bool beaten = std::ranges::any_of(kept, [&](int k) { return dominates(k, i); });
      if (!beaten || i == least) kept.push_back(i);
    }
    if (kept.size() <= most) return kept;
    order = kept;
  }
}

Plan ExpandBlockPlans(const Graph& whole, const Graph& one_block, const BlockMenu& menu,
                      const std::vector<int>& choice, int64_t micro_batch) {
  Plan plan = KeepPlan(whole, micro_batch);
  plan.name = "auto";
  for (int layer = 0; layer < whole.layers; ++layer) {
    const BlockPlan& block = menu.plans[choice.at(layer)];
    for (size_t i = 0; i < menu.open.size(); ++i) {
      const OpenValue& open = menu.open[i];
      plan.actions[ValueInLayer(whole, one_block, open.value, layer)] =
          open.actions[block.choice[i]];
    }
  }
  return plan;
}

}  // namespace haversack
