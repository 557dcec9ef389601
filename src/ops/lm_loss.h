// The LM head with its cross-entropy, over chunks of tokens: the full logits never exist.
#pragma once

#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "ops/op.h"

namespace haversack {

// Input: x [tokens, hidden], normalised. Parameter: head [vocab, hidden].
// Forward with `grad_param[0]` null only adds to the loss. Otherwise each chunk's backward runs
// with its forward: the gradient of the mean loss (`loss_scale`) is written over x and added to the
// head's.
class LmLoss final : public Op {
 public:
  LmLoss(int64_t hidden, int64_t vocab, int64_t chunk, ComputeType compute = ComputeType::kF32)
      : hidden_(hidden), vocab_(vocab), chunk_(chunk), matmul_(compute) {}
  std::string_view kind() const override { return "lm_loss"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override { return {}; }
  BackwardReads backward_reads() const override { return {}; }
  bool is_loss() const override { return true; }
  size_t forward_scratch(const BatchShape& shape) const override;
  double forward_flops(const BatchShape& shape) const override;
  double backward_flops(const BatchShape&) const override { return 0; }
  // Of training: those of the gradients too.
  std::vector<MatrixProduct> forward_products(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

  // Logits [rows, vocab] of the first `rows` rows of x in f32, for generation.
  void Logits(const float* x, int64_t rows, const float* head, float* logits) const;
  int64_t vocab() const { return vocab_; }

 private:
  int64_t Chunk(int64_t tokens) const;

  int64_t hidden_, vocab_, chunk_;
  Matmul matmul_;
};

}  // namespace haversack
