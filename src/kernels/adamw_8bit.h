// AdamW with moments of one byte: block-wise quantised, each block of 256 elements scaled by its
// largest magnitude (Dettmers et al., arXiv 2110.02861; block size of their later releases).
#pragma once

#include <cstdint>

#include "kernels/adamw.h"

namespace haversack {

inline constexpr int64_t kMomentBlock = 256;  // elements that share a scale

inline int64_t MomentBlocks(int64_t count) { return (count + kMomentBlock - 1) / kMomentBlock; }

// Bytes in the dynamic code books, and the scale of each block. All bytes zero: moments of zero.
struct Moments8Bit {
  uint8_t* m = nullptr;      // [count], signed
  uint8_t* v = nullptr;      // [count], unsigned
  float* m_scale = nullptr;  // [MomentBlocks(count)]
  float* v_scale = nullptr;  // [MomentBlocks(count)]
};

// AdamWUpdate on moments that are read from, and rounded to the nearest of, their code books; the
// weights see the moments before that rounding. A second moment that is not zero never rounds to
// zero: an element whose gradient stops would move by its first moment over epsilon (own).
void AdamWUpdate8Bit(float* weight, const float* grad, const Moments8Bit& moments, int64_t count,
                     const AdamWStep& step);

}  // namespace haversack
