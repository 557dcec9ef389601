#include "ops/embedding.h"

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "kernels/embedding.h"

namespace haversack {

std::string Embedding::signature() const {
  return fmt::format("embedding({}x{}{})", vocab_, cols_,
                     learned_positions_ > 0 ? fmt::format(",{} positions", learned_positions_) : "");
}

double Embedding::forward_flops(const BatchShape& shape) const {
  return static_cast<double>(shape.tokens() * cols_);
}

void Embedding::Forward(const OpArgs& args) const {
  EmbeddingForward(args.param[0], vocab_, cols_, args.batch->ids.data(), args.tokens, args.out[0]);
  if (learned_positions_ > 0) {
    EmbeddingAdd(args.param[1], learned_positions_, cols_, args.batch->positions.data(),
                 args.tokens, args.out[0]);
  }
}

void Embedding::Backward(const OpArgs& args) const {
  if (!args.accumulate_param[0]) FillZero(args.grad_param[0], vocab_ * cols_);
  EmbeddingBackward(args.grad_out[0], args.batch->ids.data(), args.tokens, cols_,
                    args.grad_param[0], vocab_);
  if (learned_positions_ > 0) {
    if (!args.accumulate_param[1]) FillZero(args.grad_param[1], learned_positions_ * cols_);
    EmbeddingBackward(args.grad_out[0], args.batch->positions.data(), args.tokens, cols_,
                      args.grad_param[1], learned_positions_);
  }
}

}  // namespace haversack
