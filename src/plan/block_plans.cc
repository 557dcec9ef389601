#include "plan/block_plans.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace haversack {
namespace {

// Values of the block whose action is open, with what may be done to each.
struct OpenValue {
  ValueId value = -1;
  std::vector<Action> actions;
};

std::vector<OpenValue> OpenValues(const Graph& graph) {
  const Action recompute = Action::Recompute();
  std::vector<OpenValue> open;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const auto v = static_cast<ValueId>(i);
    if (graph.values[i].layer < 0 || !graph.values[i].saved || graph.IsCheap(v)) continue;
    if (!WhyIllegal(graph, v, recompute).empty()) continue;
    if (graph.nodes[graph.values[i].consumers.back()].layer < 0) continue;  // the block's output
    open.push_back({.value = v, .actions = {Action{}, recompute}});
  }
  return open;
}

bool InBlock(const Graph& graph, const Instr& instr) {
  return instr.node >= 0 && graph.nodes[instr.node].layer >= 0;
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

BlockPlan Simulate(const Graph& graph, Plan& plan, const BatchShape& shape, ScheduleMode mode,
                   const CostProfile& profile, BlockMenu& menu) {
  const Schedule schedule = LowerWithoutOffsets(graph, plan, shape, mode);
  const std::vector<LiveBytes> live = SimulateMemory(schedule);
  const int loss = LossInstruction(schedule, graph);
  BlockPlan block{.actions = plan.actions, .stored = StoredBytes(schedule, graph)};
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

bool Dominates(const BlockPlan& a, const BlockPlan& b) {
  return a.seconds <= b.seconds && a.stored <= b.stored && a.forward_peak <= b.forward_peak &&
         a.backward_peak <= b.backward_peak;
}

void KeepUndominated(std::vector<BlockPlan>& plans) {
  std::stable_sort(plans.begin(), plans.end(), [](const BlockPlan& a, const BlockPlan& b) {
    return std::pair(a.seconds, a.stored) < std::pair(b.seconds, b.stored);
  });
  std::vector<BlockPlan> kept;
  for (BlockPlan& plan : plans) {
    const bool beaten = std::any_of(kept.begin(), kept.end(),
                                    [&](const BlockPlan& other) { return Dominates(other, plan); });
    if (!beaten) kept.push_back(std::move(plan));
  }
  plans = std::move(kept);
}

}  // namespace

BlockMenu EnumerateBlockPlans(const Graph& graph, const BatchShape& shape, ScheduleMode mode,
                              const CostProfile& profile) {
  HAVERSACK_CHECK(graph.layers == 1, "{} layers", graph.layers);
  const std::vector<OpenValue> open = OpenValues(graph);
  BlockMenu menu;
  Plan plan = KeepPlan(graph, shape.sequences);
  std::vector<size_t> digits(open.size(), 0);
  while (true) {
    for (size_t i = 0; i < open.size(); ++i) {
      plan.actions[open[i].value] = open[i].actions[digits[i]];
    }
    menu.plans.push_back(Simulate(graph, plan, shape, mode, profile, menu));
    size_t i = 0;
    while (i < open.size() && ++digits[i] == open[i].actions.size()) digits[i++] = 0;
    if (i == open.size()) break;
  }
  KeepUndominated(menu.plans);
  return menu;
}

Plan ExpandBlockPlans(const Graph& whole, const Graph& one_block, const BlockMenu& menu,
                      const std::vector<int>& choice, int64_t micro_batch) {
  std::map<std::string_view, ValueId> by_kind;
  for (size_t v = 0; v < one_block.values.size(); ++v) {
    if (one_block.values[v].layer >= 0) by_kind[one_block.values[v].kind()] = static_cast<int>(v);
  }
  Plan plan = KeepPlan(whole, micro_batch);
  plan.name = "auto";
  for (size_t v = 0; v < whole.values.size(); ++v) {
    const Value& value = whole.values[v];
    if (value.layer < 0 || !value.saved) continue;
    const Action& action = menu.plans[choice.at(value.layer)].actions[by_kind.at(value.kind())];
    if (WhyIllegal(whole, static_cast<ValueId>(v), action).empty()) plan.actions[v] = action;
  }
  return plan;
}

}  // namespace haversack
