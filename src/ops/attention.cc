#include "ops/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/threads.h"

namespace haversack {

Attention::Attention(int64_t q_heads, int64_t kv_heads, int64_t head_dim, float scale,
                     bool separate_qk)
    : q_heads_(q_heads), kv_heads_(kv_heads), head_dim_(head_dim), separate_qk_(separate_qk) {
  const int64_t packed = (q_heads + 2 * kv_heads) * head_dim;
  const int64_t qk = separate_qk ? (q_heads + kv_heads) * head_dim : packed;
  shape_ = {.q_heads = q_heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .scale = scale,
            .q_stride = qk,
            .k_stride = qk,
            .v_stride = packed,
            .out_stride = q_heads * head_dim};
}

std::string Attention::signature() const {
  return fmt::format("attention({}:{}x{}{})", q_heads_, kv_heads_, head_dim_,
                     separate_qk_ ? ",qk" : "");
}

std::vector<int64_t> Attention::output_cols() const { return {q_heads_ * head_dim_, q_heads_}; }

BackwardReads Attention::backward_reads() const {
  if (separate_qk_) return {.inputs = {0, 1}, .outputs = {0, 1}};
  return {.inputs = {0}, .outputs = {0, 1}};
}

std::pair<int64_t, int64_t> Attention::columns_read(int input, int64_t cols) const {
  if (separate_qk_ && input == 0) return {(q_heads_ + kv_heads_) * head_dim_, cols};
  return {0, cols};
}

Op::SensitiveInput Attention::sensitive_input() const {
  return {.input = separate_qk_ ? 1 : 0, .begin = 0, .end = (q_heads_ + kv_heads_) * head_dim_};
}

size_t Attention::forward_scratch(const BatchShape& shape) const {
  return AttentionForwardScratch(shape_, shape.seq, NumThreads());
}

size_t Attention::backward_scratch(const BatchShape& shape) const {
  return AttentionBackwardScratch(shape_, shape.tokens(), shape.seq, NumThreads());
}

double Attention::forward_flops(const BatchShape& shape) const {
  // Two products over the causal half, one document a sequence.
  const double seq = static_cast<double>(shape.seq);
  return 2.0 * static_cast<double>(shape.sequences * q_heads_ * head_dim_) * seq * (seq + 1);
}

double Attention::backward_flops(const BatchShape& shape) const {
  return 2.5 * forward_flops(shape);
}

Attention::Pointers Attention::Split(const OpArgs& args) const {
  const float* qk = separate_qk_ ? args.in[1] : args.in[0];
  return {.q = qk,
          .k = qk + q_heads_ * head_dim_,
          .v = args.in[0] + (q_heads_ + kv_heads_) * head_dim_};
}

void Attention::Forward(const OpArgs& args) const {
  const auto [q, k, v] = Split(args);
  AttentionForward(shape_, args.batch->boundaries, q, k, v, args.out[0], args.out[1], args.scratch);
}

void Attention::Backward(const OpArgs& args) const {
  HAVERSACK_CHECK(!args.accumulate_in[0] && !args.accumulate_in[1],
                  "attention's backward overwrites its input gradients");
  const auto [q, k, v] = Split(args);
  float* d_qk = separate_qk_ ? args.grad_in[1] : args.grad_in[0];
  AttentionBackward(shape_, args.batch->boundaries, q, k, v, args.out[0], args.out[1],
                    args.grad_out[0], d_qk, d_qk + q_heads_ * head_dim_,
                    args.grad_in[0] + (q_heads_ + kv_heads_) * head_dim_, args.scratch);
}

size_t Attention::cached_scratch(int64_t tokens, int64_t cached_tokens) const {
  return std::max(AttentionForwardScratch(shape_, tokens, NumThreads()),
                  AttentionDecodeScratch(shape_, cached_tokens + tokens));
}

void Attention::ForwardCached(const OpArgs& args, KvCache* cache) const {
  HAVERSACK_CHECK(cache != nullptr && cache->length + args.tokens <= cache->capacity,
                  "a key/value cache of {} tokens", cache == nullptr ? 0 : cache->capacity);
  const auto [q, k, v] = Split(args);
  const int64_t kv_cols = kv_heads_ * head_dim_;
  for (int64_t t = 0; t < args.tokens; ++t) {
    std::copy_n(k + t * shape_.k_stride, kv_cols, cache->keys + (cache->length + t) * kv_cols);
    std::copy_n(v + t * shape_.v_stride, kv_cols, cache->values + (cache->length + t) * kv_cols);
  }
  if (cache->length == 0) {
    const std::array<int32_t, 2> whole = {0, static_cast<int32_t>(args.tokens)};
    AttentionForward(shape_, whole, q, k, v, args.out[0], args.out[1], args.scratch);
    return;
  }
  AttentionShape cached = shape_;
  cached.k_stride = cached.v_stride = kv_cols;
  for (int64_t t = 0; t < args.tokens; ++t) {
    AttentionDecode(cached, cache->length + t + 1, q + t * shape_.q_stride, cache->keys,
                    cache->values, args.out[0] + t * shape_.out_stride, args.scratch);
  }
}

}  // namespace haversack
