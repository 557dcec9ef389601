#include "plan/plan_table.h"

#include <algorithm>

namespace haversack {
namespace {

int64_t StoredBytes(const Value& value, const Action& action, int64_t tokens) {
  if (action.kind == Action::Kind::kKeep) return value.bytes(tokens);
  int64_t bytes = 0;
  for (size_t p = 0; p < action.codecs.size(); ++p) {
    bytes += static_cast<int64_t>(EncodedBytes(action.codecs[p], tokens, value.pieces[p].cols));
  }
  return bytes;
}

// The value that an instruction is run for beyond what every plan runs, or -1.
ValueId PaidFor(const Graph& graph, const Instr& instr) {
  if (instr.kind == InstrKind::kEncode || instr.kind == InstrKind::kDecode) return instr.value;
  if (instr.kind != InstrKind::kRecompute) return -1;
  const ValueId output = graph.nodes[instr.node].outputs[0];
  return graph.IsCheap(output) ? -1 : output;
}

}  // namespace

std::vector<PlanRow> TabulatePlan(const Graph& graph, const Plan& plan, const Schedule& schedule,
                                  const CostProfile& profile) {
  std::vector<double> seconds(graph.values.size());
  for (const Instr& instr : schedule.instrs) {
    const ValueId v = PaidFor(graph, instr);
    if (v >= 0) seconds[v] += profile.Seconds(graph, schedule, instr);
  }
  const int64_t tokens = schedule.shape.tokens();
  std::vector<PlanRow> rows;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const auto v = static_cast<ValueId>(i);
    const Value& value = graph.values[i];
    if (!value.saved || graph.IsCheap(v) || graph.IsRowStatistic(v)) continue;
    const std::string kind(value.kind()), action = plan.actions[i].ToText();
    auto row = std::ranges::find_if(
        rows, [&](const PlanRow& r) { return r.kind == kind && r.action == action; });
    if (row == rows.end()) row = rows.insert(rows.end(), {.kind = kind, .action = action});
    const int64_t stored = StoredBytes(value, plan.actions[i], tokens);
    row->values += 1;
    row->stored_bytes += stored;
    row->saved_bytes += value.bytes(tokens) - stored;
    row->seconds += seconds[i];
  }
  std::ranges::stable_sort(rows, {}, [&](const PlanRow& row) {
    const auto first = std::ranges::find_if(
        graph.values, [&](const Value& value) { return value.kind() == row.kind; });
    return first - graph.values.begin();
  });
  return rows;
}

}  // namespace haversack
