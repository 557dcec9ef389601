// Codecs and shapes that the codec tests run over, and encoding and decoding on vectors.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/reference_test_util.h"

namespace haversack {

inline constexpr RandomKey kKey{
    .seed = 7, .purpose = RandomPurpose::kRounding, .layer = 3, .step = 11};

inline CodecSpec Codec(const std::string& text) { return ParseCodec(text, "test"); }

inline std::vector<std::byte> EncodeAll(const EncodedShape& shape, const float* x, int64_t stride,
                                        const RandomKey& key = kKey) {
  std::vector<std::byte> bytes(EncodedBytes(shape.codec, shape.rows, shape.cols), std::byte{0xA5});
  Encode(shape, x, stride, key, bytes.data());
  return bytes;
}

inline Floats RoundTrip(const EncodedShape& shape, const Floats& x, const RandomKey& key = kKey) {
  Floats y(x.size());
  Decode(shape, EncodeAll(shape, x.data(), shape.cols, key).data(), y.data(), shape.cols);
  return y;
}

// `count` columns spread over [0, cols), some of them neighbours.
inline std::vector<int32_t> SomeColumns(int count, int64_t cols) {
  std::vector<int32_t> columns;
  for (int i = 0; i < count; ++i) columns.push_back(static_cast<int32_t>(i * (cols - 1) / count));
  return columns;
}

struct Shape {
  int64_t rows, cols;
};
// Less than a chunk, whole chunks, groups of every size cut short, several of everything.
inline constexpr Shape kShapes[] = {{1, 1},  {2, 7},   {3, 32},  {2, 77},
                                    {5, 96}, {3, 160}, {2, 579}, {4, 576}};

inline constexpr const char* kAllCodecs[] = {"bf16",       "int8/32",    "int8",    "int8/128",
                                             "int8+sr",    "int4/32",    "int4",    "int4/128",
                                             "int4/32+sr", "int4/32+o3", "int8+o2", "int4+o6+sr"};

// Runs body(shape, x) over codecs and shapes that have room for the codec's outliers.
template <typename Body>
void ForEachCase(const Body& body) {
  for (const char* text : kAllCodecs) {
    for (const auto [rows, cols] : kShapes) {
      const CodecSpec codec = Codec(text);
      if (codec.outliers > cols) continue;
      SCOPED_TRACE(::testing::Message() << text << " [" << rows << ", " << cols << "]");
      const std::vector<int32_t> outliers = SomeColumns(codec.outliers, cols);
      Floats x = RandomFloats(rows * cols, 5, 3, 0.5);
      for (int64_t r = 0; r < rows; ++r) {
        for (const int32_t c : outliers) x[r * cols + c] *= 100;
      }
      body(EncodedShape{codec, rows, cols, outliers}, x);
    }
  }
}

}  // namespace haversack
