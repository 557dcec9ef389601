#include "ops/embedding.h"

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "kernels/embedding.h"

namespace haversack {

std::string Embedding::signature() const {
  return fmt::format(
      "embedding({}x{}{})", vocab_, cols_,
      learned_positions_ > 0 ? fmt::format(",{} positions", learned_positions_) : "");
}

double Embedding::forward_flops(const BatchShape& shape) const {
  return static_cast<double>(shape.tokens() * cols_);
}

void Embedding::Forward(const OpArgs& args) const {
  const int32_t* ids = args.batch->ids.data();
  if (learned_positions_ == 0) {
    EmbeddingForward(args.param[0], vocab_, cols_, ids, args.tokens, args.out[0]);
  } else {
    EmbeddingForward(args.param[0], vocab_, cols_, ids, args.param[1], learned_positions_,
                     args.batch->positions.data(), args.tokens, args.out[0]);
  }
}

void Embedding::Backward(const OpArgs& args) const {
  if (!args.accumulate_param[0]) Fill(args.grad_param[0], vocab_ * cols_, 0);
  EmbeddingBackward(args.grad_out[0], args.batch->ids.data(), args.tokens, cols_,
                    args.grad_param[0], vocab_);
  if (learned_positions_ > 0) {
    if (!args.accumulate_param[1]) Fill(args.grad_param[1], learned_positions_ * cols_, 0);
    EmbeddingBackward(args.grad_out[0], args.batch->positions.data(), args.tokens, cols_,
                      args.grad_param[1], learned_positions_);
  }
}

}  // namespace haversack
