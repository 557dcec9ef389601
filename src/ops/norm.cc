#include "ops/norm.h"

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/layer_norm.h"
#include "kernels/qk_norm.h"
#include "kernels/rms_norm.h"

namespace haversack {

std::string RmsNorm::signature() const { return fmt::format("rms_norm({})", cols_); }

size_t RmsNorm::backward_scratch(const BatchShape& shape) const {
  return RmsNormBackwardScratch(shape.tokens(), cols_);
}

size_t RmsNorm::encoded_scratch(const BatchShape& shape) const {
  return RmsNormBackwardFromRowsScratch(shape.tokens(), cols_);
}

double RmsNorm::forward_flops(const BatchShape& shape) const {
  return 4.0 * static_cast<double>(shape.tokens() * cols_);
}

void RmsNorm::Forward(const OpArgs& args) const {
  RmsNormForward(args.in[0], args.param[0], epsilon_, args.tokens, cols_, args.out[0], args.out[1]);
}

void RmsNorm::Recompute(const OpArgs& args) const {
  if (!args.encoded[0].empty()) {
    return RmsNormRebuildEncoded(args.encoded[0][0], args.param[0], args.out[1], args.out[0]);
  }
  RmsNormRebuild(args.in[0], args.param[0], args.out[1], args.tokens, cols_, args.out[0]);
}

void RmsNorm::Backward(const OpArgs& args) const {
  if (!args.encoded[0].empty()) {
    return RmsNormBackwardEncoded(args.grad_out[0], args.encoded[0][0], args.param[0], args.out[1],
                                  args.grad_in[0], args.accumulate_in[0], args.grad_param[0],
                                  args.accumulate_param[0], args.scratch);
  }
  RmsNormBackward(args.grad_out[0], args.in[0], args.param[0], args.out[1], args.tokens, cols_,
                  args.grad_in[0], args.accumulate_in[0], args.grad_param[0],
                  args.accumulate_param[0], args.scratch);
}

std::string LayerNorm::signature() const { return fmt::format("layer_norm({})", cols_); }

size_t LayerNorm::backward_scratch(const BatchShape& shape) const {
  return LayerNormBackwardScratch(shape.tokens(), cols_);
}

double LayerNorm::forward_flops(const BatchShape& shape) const {
  return 7.0 * static_cast<double>(shape.tokens() * cols_);
}

void LayerNorm::Forward(const OpArgs& args) const {
  LayerNormForward(args.in[0], args.param[0], args.param[1], epsilon_, args.tokens, cols_,
                   args.out[0], args.out[1], args.out[2]);
}

void LayerNorm::Recompute(const OpArgs& args) const {
  LayerNormRebuild(args.in[0], args.param[0], args.param[1], args.out[1], args.out[2], args.tokens,
                   cols_, args.out[0]);
}

void LayerNorm::Backward(const OpArgs& args) const {
  LayerNormBackward(args.grad_out[0], args.in[0], args.param[0], args.out[1], args.out[2],
                    args.tokens, cols_, args.grad_in[0], args.accumulate_in[0], args.grad_param[0],
                    args.grad_param[1], args.accumulate_param[0], args.scratch);
}

std::string QkNormRope::signature() const {
  return fmt::format("qk_norm_rope({}+{}x{})", q_heads_, kv_heads_, head_dim_);
}

std::vector<int64_t> QkNormRope::output_cols() const {
  return {(q_heads_ + kv_heads_) * head_dim_, q_heads_ + kv_heads_};
}

size_t QkNormRope::backward_scratch(const BatchShape& shape) const {
  return QkNormRopeBackwardScratch(shape.tokens(), head_dim_);
}

double QkNormRope::forward_flops(const BatchShape& shape) const {
  return 7.0 * static_cast<double>(shape.tokens() * (q_heads_ + kv_heads_) * head_dim_);
}

void QkNormRope::Forward(const OpArgs& args) const {
  QkNormRopeForward(args.in[0], (q_heads_ + 2 * kv_heads_) * head_dim_, args.tokens, q_heads_,
                    kv_heads_, head_dim_, args.param[0], args.param[1], epsilon_,
                    args.batch->positions.data(), rope_->cos(), rope_->sin(), args.out[0],
                    args.out[1]);
}

void QkNormRope::Backward(const OpArgs& args) const {
  // Attention's backward wrote the v columns of the packed gradient already; q and k are written
  // here.
  HAVERSACK_CHECK(args.accumulate_in[0], "attention must have written the packed gradient first");
  const int64_t stride = (q_heads_ + 2 * kv_heads_) * head_dim_;
  QkNormRopeBackward(args.grad_out[0], args.in[0], stride, args.tokens, q_heads_, kv_heads_,
                     head_dim_, args.param[0], args.param[1], args.out[1],
                     args.batch->positions.data(), rope_->cos(), rope_->sin(), args.grad_in[0],
                     stride, args.grad_param[0], args.grad_param[1], args.accumulate_param[0],
                     args.scratch);
}

}  // namespace haversack
