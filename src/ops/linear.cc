#include "ops/linear.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/rope.h"

namespace haversack {

std::string Linear::Traits() const {
  return fmt::format("{}{}{}", bias_ ? ",bias" : "",
                     matmul_.type() == ComputeType::kBF16 ? ",bf16" : "",
                     rank_ > 0 ? fmt::format(",rank {}", rank_) : "");
}

std::string Linear::signature() const {
  return fmt::format("{}({}->{}{})", kind(), in_, out_, Traits());
}

size_t Linear::forward_scratch(const BatchShape& shape) const {
  return matmul_.Scratch(shape.tokens(), out_, in_);
}

size_t Linear::backward_scratch(const BatchShape& shape) const {
  const int64_t tokens = shape.tokens();
  return std::max({matmul_.Scratch(out_, rank_ > 0 ? rank_ : in_, tokens),
                   matmul_.Scratch(tokens, in_, out_),
                   bias_ ? BiasBackwardScratch(tokens, out_) : 0});
}

double Linear::forward_flops(const BatchShape& shape) const {
  return 2.0 * static_cast<double>(shape.tokens()) * static_cast<double>(in_) *
         static_cast<double>(out_);
}

std::vector<MatrixProduct> Linear::forward_products(const BatchShape& shape) const {
  return {
      {.tb = Transpose::kYes, .m = shape.tokens(), .n = out_, .k = in_, .type = matmul_.type()}};
}

std::vector<MatrixProduct> Linear::backward_products(const BatchShape& shape) const {
  return {{.ta = Transpose::kYes,
           .m = out_,
           .n = rank_ > 0 ? rank_ : in_,
           .k = shape.tokens(),
           .type = matmul_.type()},
          {.m = shape.tokens(), .n = in_, .k = out_, .type = matmul_.type()}};
}

double Linear::backward_flops(const BatchShape& shape) const {
  const double share = rank_ > 0 ? static_cast<double>(rank_) / static_cast<double>(in_) : 1;
  return (1 + share) * forward_flops(shape);
}

void Linear::Project(const OpArgs& args, float beta) const {
  matmul_(Transpose::kNo, Transpose::kYes, args.tokens, out_, in_, 1, args.in[0], in_,
          args.param[0], in_, beta, args.out[0], out_, args.scratch);
  if (bias_) AddBias(args.out[0], args.tokens, out_, args.param[1]);
}

void Linear::Forward(const OpArgs& args) const { Project(args, 0); }

void Linear::Backward(const OpArgs& args) const {
  const float* dy = args.grad_out[0];
  const float beta = args.accumulate_param[0] ? 1 : 0;
  if (rank_ > 0) {
    matmul_.ByRows(Transpose::kYes, Transpose::kNo, out_, rank_, args.tokens, 1, dy, out_,
                   args.in[backward_input()], rank_, beta, args.grad_param[0], rank_, args.scratch);
  } else {
    matmul_(Transpose::kYes, Transpose::kNo, out_, in_, args.tokens, 1, dy, out_, args.in[0], in_,
            beta, args.grad_param[0], in_, args.scratch);
  }
  if (bias_) {
    BiasBackward(dy, args.tokens, out_, out_, args.grad_param[1], args.accumulate_param[1],
                 args.scratch);
  }
  matmul_(Transpose::kNo, Transpose::kNo, args.tokens, in_, out_, 1, dy, out_, args.param[0], in_,
          args.accumulate_in[0] ? 1 : 0, args.grad_in[0], in_, args.scratch);
}

void ResidualLinear::Forward(const OpArgs& args) const {
  CopyRows(args.in[1], out_, args.tokens, out_, args.out[0], out_);
  Project(args, 1);
}

std::string QkvProjection::signature() const {
  return fmt::format("{}({}->{}+{}x{}{}{})", kind(), in_, heads_.q, heads_.kv, heads_.dim, Traits(),
                     rope_ ? ",rope" : "");
}

void QkvProjection::Forward(const OpArgs& args) const {
  Linear::Forward(args);
  if (rope_) {
    RopeForward(args.out[0], out_, args.tokens, heads_.q + heads_.kv, heads_.dim,
                args.batch->positions.data(), rope_->cos(), rope_->sin());
  }
}

void QkvProjection::Backward(const OpArgs& args) const {
  if (rope_) {
    RopeBackward(args.grad_out[0], out_, args.tokens, heads_.q + heads_.kv, heads_.dim,
                 args.batch->positions.data(), rope_->cos(), rope_->sin());
  }
  Linear::Backward(args);
}

}  // namespace haversack
