// The dynamic code book of 8-bit optimizers (Dettmers et al., "8-bit optimizers via block-wise
// quantization", arXiv 2110.02861): numbers of [0, 1] with a decade of the value in unary and the
// rest of the byte for the fraction, so that seven decades are covered and large values finely.
#pragma once

#include <array>
#include <cstdint>

namespace haversack {

// Magnitudes of one code book in ascending order. Decade i of 0..6 covers [10^(i-7), 10^(i-6)) with
// 2^i equal bins (signed) or 2^(i+1) (unsigned), of which the centres are the magnitudes; 0 and 1
// complete them.
struct DynamicCode {
  bool is_signed = false;
  int count = 0;                           // 129 signed, 256 unsigned
  std::array<float, 260> magnitude{};      // [count]
  std::array<float, 260> threshold{};      // [count + 1]: k is nearest in [threshold k, k + 1)
  std::array<float, 256> value{};          // what a byte stands for
  std::array<float, 7> slope{}, offset{};  // magnitude x of decade i is near slope x + offset
};

// Byte 127 + k is +magnitude[k] and byte 127 - k its negative; -1 is not among them.
const DynamicCode& SignedDynamicCode();
// Byte k is magnitude[k].
const DynamicCode& UnsignedDynamicCode();

}  // namespace haversack
