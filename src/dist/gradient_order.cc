#include "dist/gradient_order.h"

#include <algorithm>

namespace haversack {

std::vector<int64_t> CompleteFrom(const Graph& graph, const ParamLayout& layout,
                                  const Schedule& schedule) {
  const auto params = static_cast<ParamId>(graph.params.size());
  std::vector<size_t> last(params, 0);
  for (size_t i = 0; i < schedule.instrs.size(); ++i) {
    const Instr& instr = schedule.instrs[i];
    if (instr.node < 0) continue;
    const Node& node = graph.nodes[instr.node];
    if (instr.kind != InstrKind::kBackward && !node.op->is_loss()) continue;
    for (const ParamId p : node.params) last[p] = i;
  }
  std::vector<int64_t> from(schedule.instrs.size(), layout.grad_total);
  ParamId open = params;  // those from here on are complete
  for (size_t i = 0; i < schedule.instrs.size(); ++i) {
    while (open > 0 && last[open - 1] <= i) --open;
    // Before the first backward nothing is.
    from[i] = open == params ? layout.grad_total : layout.grad_offset[open];
  }
  return from;
}

}  // namespace haversack
