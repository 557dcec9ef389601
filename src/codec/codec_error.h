// What a codec loses on a given value.
#pragma once

#include <cstdint>

#include "codec/codec.h"

namespace haversack {

// Sums of squares over a value, so that several micro-batches can be added up.
struct SquaredError {
  double error = 0;  // |decode(encode(x)) - x|^2
  double norm = 0;   // |x|^2

  // error / norm; 0 for a value of zeros. NaN where the value holds one or an infinity.
  double Relative() const { return error == 0 ? 0 : error / norm; }
  SquaredError& operator+=(const SquaredError& other) {
    error += other.error;
    norm += other.norm;
    return *this;
  }
};

// Encodes and decodes a few rows at a time, with the bits that Encode and Decode of the whole would
// give; scratch is a few rows a thread. Independent of the number of threads.
SquaredError MeasureError(const EncodedShape& shape, const float* x, int64_t stride,
                          const RandomKey& key);

}  // namespace haversack
