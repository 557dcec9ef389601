// Rotary position embedding (Su et al., arXiv 2104.09864) in Hugging Face's "rotate half" layout:
// in each head, element i is paired with element i + head_dim / 2.
//
// cos, sin: [max_positions, head_dim / 2] tables; positions: [rows]. Row r starts at x + r * stride
// (in floats) and holds `heads` heads of `head_dim` (even) one after the other, so packed q, k, v
// rows are rotated in place by giving q_heads + kv_heads heads.
#pragma once

#include <cstdint>

namespace haversack {

// x[i] <- x[i] cos - x[i + half] sin; x[i + half] <- x[i + half] cos + x[i] sin.
void RopeForward(float* x, int64_t stride, int64_t rows, int64_t heads, int64_t head_dim,
                 const int32_t* positions, const float* cos, const float* sin);

// Rotates by the negative angle: the transpose, which takes the gradient of the output to that of
// the input.
void RopeBackward(float* x, int64_t stride, int64_t rows, int64_t heads, int64_t head_dim,
                  const int32_t* positions, const float* cos, const float* sin);

}  // namespace haversack
