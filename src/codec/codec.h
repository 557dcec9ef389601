// Codecs of saved activations: f32 matrices held in 16, 8 or about 5 bits a value between the
// forward pass and the backward pass.
//
//   const CodecSpec codec = ParseCodec("int4/32+o6", "--actions");
//   const std::vector<int32_t> outliers = LargestColumns(x, stride, rows, cols, codec.outliers);
//   const EncodedShape shape{codec, rows, cols, outliers};
//   Encode(shape, x, stride, {.seed = 1, .purpose = RandomPurpose::kRounding}, buffer);
//   ...
//   Decode(shape, buffer, x, stride);
//
// A value is [rows, cols] with `stride` floats from row to row, so it may be a column range of a
// packed buffer; the columns between two ranges are neither read nor written. Encoded bytes depend
// neither on the number of threads nor on the vector extension in use. A group that holds a NaN or
// an infinity decodes to NaN throughout, and bf16 keeps both, so a diverged run stays visible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace haversack {

class CodecFormat;

// One way of encoding. Text: NAME[/GROUP][+oOUTLIERS][+sr].
struct CodecSpec {
  const CodecFormat* format = nullptr;  // one of CodecFormats()
  int group = 0;            // columns that share a scale: 32, 64 or 128; 0 where none is
  int outliers = 0;         // columns held in bf16, outside the groups
  bool stochastic = false;  // rounds up or down at random, unbiased, instead of to nearest

  // "bf16", "int8", "int4/32+o6+sr"; a group of 64 is not spelled out.
  std::string ToText() const;
  bool operator==(const CodecSpec&) const = default;
};

// Throws UserError (exit 2) naming `where` (a flag or field) and what is known.
CodecSpec ParseCodec(std::string_view text, std::string_view where);

// Every format there is, by the order of registration.
std::span<const CodecFormat* const> CodecFormats();

struct EncodedShape {
  CodecSpec codec;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const int32_t> outliers;  // the codec.outliers columns held in bf16, ascending
};

// Bytes of an encoded value, a multiple of 64.
size_t EncodedBytes(const CodecSpec& codec, int64_t rows, int64_t cols);

// x: [rows, cols]; out: EncodedBytes, 64-byte aligned. Random numbers are drawn under stochastic
// rounding only, one for each (key, row, column).
void Encode(const EncodedShape& shape, const float* x, int64_t stride, const RandomKey& key,
            std::byte* out);

void Decode(const EncodedShape& shape, const std::byte* in, float* x, int64_t stride);

// Rows [begin, end) only, on the calling thread; x is where row `begin` goes.
void DecodeRows(const EncodedShape& shape, const std::byte* in, int64_t begin, int64_t end,
                float* x, int64_t stride);

}  // namespace haversack
