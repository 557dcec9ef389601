// RMS norm of each query and key head followed by rotary embedding, in one pass (Qwen3).
//
// x: row r starts at x + r * x_stride (in floats) and holds q_heads heads, then kv_heads heads,
// each [head_dim]; q_weight, k_weight: [head_dim]; positions: [rows]; cos, sin: [max_positions,
// head_dim / 2] as in rope.h; rstd: [rows, q_heads + kv_heads]. Results are bit-identical for any
// number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace haversack {

// y: [rows, (q_heads + kv_heads) * head_dim] contiguous. May be called again to rebuild y.
void QkNormRopeForward(const float* x, int64_t x_stride, int64_t rows, int64_t q_heads,
                       int64_t kv_heads, int64_t head_dim, const float* q_weight,
                       const float* k_weight, float epsilon, const int32_t* positions,
                       const float* cos, const float* sin, float* y, float* rstd);

// Bytes of scratch for QkNormRopeBackward; 64-byte aligned by the caller.
size_t QkNormRopeBackwardScratch(int64_t rows, int64_t head_dim);

// dy: [rows, (q_heads + kv_heads) * head_dim] contiguous; dx rows are dx_stride floats apart and
// are overwritten; dq_weight, dk_weight: [head_dim], overwritten or added to. dx may be dy when its
// rows are contiguous too.
void QkNormRopeBackward(const float* dy, const float* x, int64_t x_stride, int64_t rows,
                        int64_t q_heads, int64_t kv_heads, int64_t head_dim, const float* q_weight,
                        const float* k_weight, const float* rstd, const int32_t* positions,
                        const float* cos, const float* sin, float* dx, int64_t dx_stride,
                        float* dq_weight, float* dk_weight, bool accumulate_dweight,
                        std::byte* scratch);

}  // namespace haversack
