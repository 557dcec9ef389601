// Token embeddings, with learned position embeddings where the family has them.
#pragma once

#include <string>
#include <vector>

#include "ops/op.h"

namespace haversack {

// Parameters: table [vocab, cols]; with `learned_positions` > 0 also positions [learned_positions,
// cols]. Output: x [tokens, cols].
class Embedding final : public Op {
 public:
  Embedding(int64_t vocab, int64_t cols, int64_t learned_positions)
      : vocab_(vocab), cols_(cols), learned_positions_(learned_positions) {}
  std::string_view kind() const override { return "embedding"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override { return {cols_}; }
  BackwardReads backward_reads() const override { return {}; }
  double forward_flops(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 private:
  int64_t vocab_, cols_, learned_positions_;
};

}  // namespace haversack
