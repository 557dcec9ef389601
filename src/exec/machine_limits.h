// The most that this machine does: its best rates, measured warm at the very sizes at hand. A step
// can come near the sum of these times, and never beat it by more than their noise.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "exec/step_profile.h"
#include "graph/graph.h"
#include "ops/op.h"

namespace haversack {

class MachineLimits {
 public:
  // Each time is the least of this many, or of as many as take some milliseconds.
  explicit MachineLimits(int repetitions = 5) : repetitions_(repetitions) {}

  // One product of these sizes, in the fastest of the four forms (either operand transposed or
  // not): another layout of the weights could reach it. Operands are of the product's type already.
  double ProductSeconds(const MatrixProduct& product);

  // A plain copy that moves `bytes`, half of them read and half written. Measured on as many bytes,
  // up to 64 MiB; in proportion beyond.
  double CopySeconds(double bytes);

  // The best rate of an attention node, in causal FLOP/s: of one sequence of 2048 tokens, and of
  // one of `seq`.
  double AttentionRate(const Graph& graph, NodeId node, int64_t seq, bool backward);

  // Sets the rows' limit_seconds.
  void Apply(const Graph& graph, StepProfile& profile);

 private:
  int repetitions_;
  std::map<std::string, double> seconds_;  // by what was measured
};

}  // namespace haversack
