// Normalisations over a row, and the per-head normalisation of queries and keys.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/op.h"
#include "ops/rope_table.h"

namespace haversack {

// RMSNorm (Zhang and Sennrich, arXiv 1910.07467). Input: x [tokens, cols]. Parameter: weight [1,
// cols]. Outputs: y [tokens, cols] and rstd [tokens, 1].
class RmsNorm final : public Op {
 public:
  RmsNorm(int64_t cols, float epsilon) : cols_(cols), epsilon_(epsilon) {}
  std::string_view kind() const override { return "rms_norm"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override { return {cols_, 1}; }
  BackwardReads backward_reads() const override { return {.inputs = {0}, .outputs = {1}}; }
  bool cheap() const override { return true; }
  bool reads_encoded(int) const override { return true; }
  size_t encoded_scratch(const BatchShape& shape) const override;
  size_t backward_scratch(const BatchShape& shape) const override;
  double forward_flops(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Recompute(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 private:
  int64_t cols_;
  float epsilon_;
};

// LayerNorm (Ba et al., arXiv 1607.06450). Parameters: weight, bias [1, cols].
// Outputs: y [tokens, cols], mean [tokens, 1] and rstd [tokens, 1].
class LayerNorm final : public Op {
 public:
  LayerNorm(int64_t cols, float epsilon) : cols_(cols), epsilon_(epsilon) {}
  std::string_view kind() const override { return "layer_norm"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override { return {cols_, 1, 1}; }
  BackwardReads backward_reads() const override { return {.inputs = {0}, .outputs = {1, 2}}; }
  bool cheap() const override { return true; }
  size_t backward_scratch(const BatchShape& shape) const override;
  double forward_flops(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Recompute(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 private:
  int64_t cols_;
  float epsilon_;
};

// Qwen 3: RMSNorm of each query and key head over its own dimension, then rotary positions.
// Input: packed qkv [tokens, (q+2kv)*dim]. Parameters: q weight, k weight [1, dim].
// Outputs: qk [tokens, (q+kv)*dim] and rstd [tokens, q+kv]. The gradient covers qkv's q and k
// columns.
class QkNormRope final : public Op {
 public:
  QkNormRope(int64_t q_heads, int64_t kv_heads, int64_t head_dim, float epsilon,
             std::shared_ptr<const RopeTable> rope)
      : q_heads_(q_heads),
        kv_heads_(kv_heads),
        head_dim_(head_dim),
        epsilon_(epsilon),
        rope_(std::move(rope)) {}
  std::string_view kind() const override { return "qk_norm_rope"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override;
  BackwardReads backward_reads() const override { return {.inputs = {0}, .outputs = {1}}; }
  std::pair<int64_t, int64_t> columns_read(int, int64_t) const override {
    return {0, (q_heads_ + kv_heads_) * head_dim_};
  }
  bool cheap() const override { return true; }
  size_t backward_scratch(const BatchShape& shape) const override;
  double forward_flops(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 private:
  int64_t q_heads_, kv_heads_, head_dim_;
  float epsilon_;
  std::shared_ptr<const RopeTable> rope_;
};

}  // namespace haversack
