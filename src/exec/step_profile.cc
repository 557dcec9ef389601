#include "exec/step_profile.h"

#include <algorithm>

namespace haversack {
namespace {

// "blocks.3.gate_up" -> "gate_up"
std::string_view WithinBlock(std::string_view name, int layer) {
  if (layer < 0) return name;
  for (int dots = 0; dots < 2; ++dots) name.remove_prefix(name.find('.') + 1);
  return name;
}

double BytesOf(const Schedule& schedule, const BufferSlots& slots) {
  double bytes = 0;
  for (const BufferId id : slots) {
    if (id != kNoBuffer) bytes += static_cast<double>(schedule.buffers[id].bytes);
  }
  return bytes;
}

double BytesOf(const Graph& graph, const std::vector<ParamId>& params) {
  double bytes = 0;
  for (const ParamId p : params) bytes += static_cast<double>(graph.params[p].count() * 4);
  return bytes;
}

// Every operand once. Scratch is not counted: the least that has to move does not hold it.
double OperandBytes(const Graph& graph, const Schedule& schedule, const Instr& instr) {
  double bytes = BytesOf(schedule, instr.in) + BytesOf(schedule, instr.out) +
                 BytesOf(schedule, instr.grad_in) + BytesOf(schedule, instr.grad_out);
  for (size_t i = 0; i < kMaxOperands; ++i) {
    const BufferId id = instr.grad_in[i];
    if (id != kNoBuffer && instr.accumulate_in[i]) {
      bytes += static_cast<double>(schedule.buffers[id].bytes);
    }
  }
  if (instr.node < 0) return bytes;
  const Node& node = graph.nodes[instr.node];
  bytes += BytesOf(graph, node.params);
  const bool gradients = instr.kind == InstrKind::kBackward || node.op->is_loss();
  if (gradients && schedule.mode != ScheduleMode::kEvaluate) bytes += BytesOf(graph, node.params);
  return bytes;
}

// An embedding reads the rows of its tokens, not all of them.
double BytesMoved(const Graph& graph, const Schedule& schedule, const Instr& instr) {
  if (instr.node < 0 || graph.nodes[instr.node].op->kind() != "embedding") {
    return OperandBytes(graph, schedule, instr);
  }
  const bool backward = instr.kind == InstrKind::kBackward;
  const double rows = BytesOf(schedule, backward ? instr.grad_out : instr.out);
  return backward ? 3 * rows : 2 * rows;
}

}  // namespace

std::string_view ToText(Bound bound) {
  switch (bound) {
    case Bound::kProducts:
      return "products";
    case Bound::kAttention:
      return "attention";
    case Bound::kMemory:
      return "memory";
  }
  return "?";
}

std::vector<MatrixProduct> ProductsOf(const Graph& graph, const StepProfile::Row& row) {
  if (row.node < 0) return {};
  const Op& op = *graph.nodes[row.node].op;
  return row.kind == InstrKind::kBackward ? op.backward_products(row.shape)
                                          : op.forward_products(row.shape);
}

StepProfile::Row& StepProfile::Find(std::string_view name, std::string_view op,
                                    std::string_view work) {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) {
    return row.name == name && row.op == op && row.work == work;
  });
  if (found != rows_.end()) return *found;
  rows_.push_back({.name = std::string(name), .op = std::string(op), .work = std::string(work)});
  return rows_.back();
}

void StepProfile::Add(const Schedule& schedule, const Instr& instr, double seconds) {
  if (instr.kind == InstrKind::kUpdate) {
    // Weight and two moments are read and written, the gradient is read.
    const auto bytes = static_cast<double>(7 * 4 * graph_.params[instr.param].count());
    return AddMemoryWork("optimizer", ToText(instr.kind), bytes, seconds);
  }
  if (instr.node < 0) {  // a codec's
    const Value& value = graph_.values[instr.value];
    return AddMemoryWork(value.kind(), ToText(instr.kind), OperandBytes(graph_, schedule, instr),
                         seconds);
  }
  const Node& node = graph_.nodes[instr.node];
  Row& row = Find(WithinBlock(node.name, node.layer), node.op->kind(), ToText(instr.kind));
  if (row.count == 0) {
    row.node = instr.node;
    row.kind = instr.kind;
    row.shape = schedule.shape;
    row.bound = !ProductsOf(graph_, row).empty() ? Bound::kProducts
                : node.op->kv_cache_cols() > 0   ? Bound::kAttention
                                                 : Bound::kMemory;
  }
  row.count += 1;
  row.seconds += seconds;
  row.flops += instr.kind == InstrKind::kBackward ? node.op->backward_flops(schedule.shape)
                                                  : node.op->forward_flops(schedule.shape);
  row.bytes += BytesMoved(graph_, schedule, instr);
}

void StepProfile::AddMemoryWork(std::string_view name, std::string_view work, double bytes,
                                double seconds) {
  Row& row = Find(name, "", work);
  row.count += 1;
  row.seconds += seconds;
  row.bytes += bytes;
}

double StepProfile::seconds() const {
  double total = 0;
  for (const Row& row : rows_) total += row.seconds;
  return total;
}

double StepProfile::LimitSeconds(bool memory_too) const {
  double total = 0;
  for (const Row& row : rows_) {
    if (memory_too || row.bound != Bound::kMemory) total += row.limit_seconds;
  }
  return total;
}

}  // namespace haversack
