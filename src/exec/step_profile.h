// Where the time of an optimizer step goes, op by op, against what this machine can do.
//
//   StepProfile profile(graph);
//   executor.set_observer([&](const Schedule& schedule, const Instr& instr, double seconds) {
//     profile.Add(schedule, instr, seconds);
//   });
//   executor.Run(schedule, batch, /*accumulate=*/false);
//   MachineLimits().Apply(graph, profile);  // machine_limits.h
//
// A row is one kind of work: the same op at the same place of a block, in one direction, summed
// over the layers and the micro-batches.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/executor.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace haversack {

// What bounds a row: the rate of its matrix products, of attention, or of moving its bytes.
enum class Bound { kProducts, kAttention, kMemory };
std::string_view ToText(Bound bound);

class StepProfile {
 public:
  struct Row {
    std::string name;  // of the node within its block: "gate_up"
    std::string op;    // "linear"; empty for what is not an op of the graph
    std::string work;  // "forward", "recompute", "backward", "update", ...
    Bound bound = Bound::kMemory;
    int64_t count = 0;
    double seconds = 0;
    double flops = 0;
    double bytes = 0;          // each operand once, one that is updated in place twice
    double limit_seconds = 0;  // at the measured limits; 0: not measured
    // One of the row's nodes and the shape it ran at, for measuring its limit.
    NodeId node = -1;
    InstrKind kind = InstrKind::kForward;
    BatchShape shape = {};
  };

  // `graph` outlives this.
  explicit StepProfile(const Graph& graph) : graph_(graph) {}

  // Counts one instruction.
  void Add(const Schedule& schedule, const Instr& instr, double seconds);
  // Work outside the schedule that moves `bytes`.
  void AddMemoryWork(std::string_view name, std::string_view work, double bytes, double seconds);

  std::vector<Row>& rows() { return rows_; }
  const std::vector<Row>& rows() const { return rows_; }
  double seconds() const;
  // At the limits: of the products and of attention alone, or of everything.
  double LimitSeconds(bool memory_too) const;

 private:
  Row& Find(std::string_view name, std::string_view op, std::string_view work);

  const Graph& graph_;
  std::vector<Row> rows_;  // in the order of first appearance
};

// The matrix products of one instruction of `row`.
std::vector<MatrixProduct> ProductsOf(const Graph& graph, const StepProfile::Row& row);

}  // namespace haversack
