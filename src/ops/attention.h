// Causal multi-head attention with grouped key/value heads, inside document segments.
#pragma once

#include <string>
#include <vector>

#include "kernels/attention.h"
#include "ops/op.h"

namespace haversack {

// Inputs: packed qkv [tokens, (q+2kv)*dim]; with `separate_qk` also qk [tokens, (q+kv)*dim], from
// which queries and keys are read in place of qkv's columns (Qwen 3, where they were normalised).
// Outputs: out [tokens, q*dim], log-sum-exp [tokens, q].
class Attention final : public Op {
 public:
  Attention(int64_t q_heads, int64_t kv_heads, int64_t head_dim, float scale, bool separate_qk);
  std::string_view kind() const override { return "attention"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override;
  BackwardReads backward_reads() const override;
  std::pair<int64_t, int64_t> columns_read(int input, int64_t cols) const override;
  SensitiveInput sensitive_input() const override;
  size_t forward_scratch(const BatchShape& shape) const override;
  size_t backward_scratch(const BatchShape& shape) const override;
  double forward_flops(const BatchShape& shape) const override;
  double backward_flops(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;
  void ForwardCached(const OpArgs& args, KvCache* cache) const override;
  int64_t kv_cache_cols() const override { return kv_heads_ * head_dim_; }
  size_t cached_scratch(int64_t tokens, int64_t cached_tokens) const override;

 private:
  struct Pointers {
    const float* q;
    const float* k;
    const float* v;
  };
  Pointers Split(const OpArgs& args) const;

  int64_t q_heads_, kv_heads_, head_dim_;
  bool separate_qk_;
  AttentionShape shape_;
};

}  // namespace haversack
