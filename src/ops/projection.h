// z = x P: what a linear layer keeps of its input for its weight's gradient.
#pragma once

#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/projection.h"
#include "ops/op.h"

namespace haversack {

// Input: x [tokens, cols]. Output: z [tokens, rank]. No gradient passes through it; P changes with
// the epoch that the executor is at.
class Projection final : public Op {
 public:
  Projection(const ProjectionSpec& spec, ComputeType compute = ComputeType::kF32)
      : spec_(spec), matmul_(compute) {}

  std::string_view kind() const override { return "projection"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override { return {spec_.rank}; }
  BackwardReads backward_reads() const override { return {.inputs = {0}, .outputs = {}}; }
  int projection() const override { return static_cast<int>(spec_.index); }
  size_t forward_scratch(const BatchShape& shape) const override;
  double forward_flops(const BatchShape& shape) const override;
  double backward_flops(const BatchShape&) const override { return 0; }
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 private:
  ProjectionSpec spec_;
  Matmul matmul_;
};

}  // namespace haversack
