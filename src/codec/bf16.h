// bf16 numbers: the upper half of an f32, so 8 bits of precision and f32's range.
#pragma once

#include <bit>
#include <cstdint>

namespace haversack {

// To nearest, ties to even: relative error at most 2^-8 (half a unit of 8 bits) for normal numbers.
// Above 3.39e38 it is infinity; NaN stays NaN.
inline uint16_t RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits | 0x400000u) >> 16);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace haversack
