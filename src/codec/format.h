// What a codec implements. A further one is a file with a CodecFormat and a line in CodecFormats().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/random.h"
#include "codec/codec.h"

namespace haversack {

// Which random numbers an encoder draws: row r of its input takes those of row first_row + r.
struct Rounding {
  RandomKey key;
  int64_t first_row = 0;
};

class CodecFormat {
 public:
  virtual ~CodecFormat() = default;

  virtual std::string_view name() const = 0;
  // Whether values share scales in groups, which is what group sizes, outlier columns and
  // stochastic rounding need.
  virtual bool grouped() const = 0;

  virtual size_t EncodedBytes(const CodecSpec& codec, int64_t rows, int64_t cols) const = 0;

  // Rows [begin, end) of a value of `shape`, on the calling thread; x points to row `begin`.
  virtual void EncodeRows(const EncodedShape& shape, int64_t begin, int64_t end, const float* x,
                          int64_t stride, const Rounding& rounding, std::byte* out) const = 0;
  virtual void DecodeRows(const EncodedShape& shape, const std::byte* in, int64_t begin,
                          int64_t end, float* x, int64_t stride) const = 0;
};

// The formats, one a file.
const CodecFormat& Bf16Format();
const CodecFormat& Int8Format();
const CodecFormat& Int4Format();

}  // namespace haversack
