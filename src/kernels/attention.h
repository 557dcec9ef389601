// Causal attention of packed documents on f32, forward and backward, with grouped heads.
//
//   const AttentionShape shape{.q_heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125f,
//                              .q_stride = 960, .k_stride = 960, .v_stride = 960, .out_stride =
//                              576};
//   AttentionForward(shape, boundaries, qkv, qkv + 576, qkv + 768, out, lse, scratch);
//
// Nothing of size tokens x tokens exists: scores live in tiles of a block of query tokens, stacked
// over the query heads that share a key/value head, by a block of key tokens (Dao,
// "FlashAttention-2", 2023). Blocks above the diagonal are skipped. Tiles are cut relative to the
// start of a document and each sum has a fixed order, so results depend neither on the number of
// threads, nor on what the scratch holds, nor on the other documents of the micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace haversack {

// Head h of token t of q begins at q + t * q_stride + h * head_dim; k, v and out likewise, so each
// may be a column range of one packed buffer.
struct AttentionShape {
  int64_t q_heads = 0;  // a multiple of kv_heads; q head h reads kv head h / (q_heads / kv_heads)
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0;       // of q.k, usually 1 / sqrt(head_dim)
  int64_t q_stride = 0;  // floats between consecutive tokens
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  int64_t out_stride = 0;
};

// Scratch is 64-byte aligned; its content does not matter. The sizes below are bytes, exact for
// calls with at most that many tokens, segment tokens and threads (NumThreads() during the call).

// Tokens [boundaries[i], boundaries[i+1]) attend causally inside their own segment only.
// boundaries: strictly ascending, first 0, last = tokens. out[t, h] = sum_s softmax_s(scale * q[t,
// h].k[s]) v[s]; lse [tokens, q_heads] is the natural log-sum-exp of the scaled scores.
void AttentionForward(const AttentionShape& shape, std::span<const int32_t> boundaries,
                      const float* q, const float* k, const float* v, float* out, float* lse,
                      std::byte* scratch);
size_t AttentionForwardScratch(const AttentionShape& shape, int64_t max_segment_tokens,
                               int threads);

// Gradients of AttentionForward with respect to q, k and v, from its out and lse and from d_out
// (strides as out). d_q, d_k, d_v have the strides of q, k, v and are overwritten.
void AttentionBackward(const AttentionShape& shape, std::span<const int32_t> boundaries,
                       const float* q, const float* k, const float* v, const float* out,
                       const float* lse, const float* d_out, float* d_q, float* d_k, float* d_v,
                       std::byte* scratch);
size_t AttentionBackwardScratch(const AttentionShape& shape, int64_t tokens,
                                int64_t max_segment_tokens, int threads);

// One new token against a cache that already holds it: q [q_heads * head_dim], k and v [length,
// kv_heads * head_dim] with their strides -> out [q_heads * head_dim]. length >= 1.
void AttentionDecode(const AttentionShape& shape, int64_t length, const float* q, const float* k,
                     const float* v, float* out, std::byte* scratch);
size_t AttentionDecodeScratch(const AttentionShape& shape, int64_t length);

}  // namespace haversack
