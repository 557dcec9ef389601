#include "codec/fused.h"

#include <array>
#include <string>

#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

const char* const kCodecs[] = {"bf16", "int8", "int4/32", "int4/32+o3", "int8/128+sr"};
const std::vector<int32_t> kOutliers = {2, 3, 50};

// A matrix, encoded, and what it decodes to.
struct Encoded {
  Encoded(const std::string& codec_text, int64_t rows, int64_t cols, uint64_t seed) {
    const CodecSpec codec = ParseCodec(codec_text, "test");
    const std::span<const int32_t> outliers(kOutliers.data(), static_cast<size_t>(codec.outliers));
    columns.shape = {codec, rows, cols, outliers};
    const Floats x = RandomFloats(rows * cols, seed, 2);
    bytes.resize(EncodedBytes(codec, rows, cols));
    Encode(columns.shape, x.data(), cols, {.seed = seed}, bytes.data());
    columns.data = bytes.data();
    decoded.resize(x.size());
    Decode(columns.shape, bytes.data(), decoded.data(), cols);
  }

  std::vector<std::byte> bytes;
  EncodedColumns columns;
  Floats decoded;
};

struct Shape {
  int64_t rows, cols;
};
// Fewer rows than a tile, several tiles and blocks, ragged columns.
constexpr Shape kShapes[] = {{1, 64}, {9, 77}, {301, 96}};

template <typename Body>
void ForEachCase(const Body& body) {
  ForEachTarget([&] {
    for (const char* codec : kCodecs) {
      for (const auto [rows, cols] : kShapes) {
        SCOPED_TRACE(::testing::Message() << codec << " [" << rows << ", " << cols << "]");
        body(codec, rows, cols);
      }
    }
  });
}

TEST(Fused, SwigluBackwardIsDecodeThenBackwardBitForBit) {
  ForEachCase([](const char* codec, int64_t rows, int64_t cols) {
    Encoded gate(codec, rows, cols, 1), up(codec, rows, cols, 2);
    up.columns.first = cols;
    const Floats dy = RandomFloats(rows * cols, 3);
    Floats gate_up(2 * gate.decoded.size()), expected(gate_up.size()), actual(gate_up.size());
    Decode(gate.columns.shape, gate.bytes.data(), gate_up.data(), 2 * cols);
    Decode(up.columns.shape, up.bytes.data(), gate_up.data() + cols, 2 * cols);
    SwigluBackward(dy.data(), gate_up.data(), rows, cols, expected.data());
    const std::array parts = {gate.columns, up.columns};
    SwigluBackwardEncoded(dy.data(), parts, rows, cols, actual.data());
    ExpectSameBits(actual, expected);

    // Encoded as one value.
    const Encoded both(codec, rows, 2 * cols, 4);
    SwigluBackward(dy.data(), both.decoded.data(), rows, cols, expected.data());
    SwigluBackwardEncoded(dy.data(), {&both.columns, 1}, rows, cols, actual.data());
    ExpectSameBits(actual, expected);
  });
}

TEST(Fused, RmsNormRebuildIsDecodeThenRebuildBitForBit) {
  ForEachCase([](const char* codec, int64_t rows, int64_t cols) {
    const Encoded x(codec, rows, cols, 1);
    const Floats weight = RandomFloats(cols, 2, 0.5, 1), rstd = RandomFloats(rows, 3, 0.1, 1);
    Floats expected(x.decoded.size()), actual(expected.size());
    RmsNormRebuild(x.decoded.data(), weight.data(), rstd.data(), rows, cols, expected.data());
    RmsNormRebuildEncoded(x.columns, weight.data(), rstd.data(), actual.data());
    ExpectSameBits(actual, expected);
  });
}

TEST(Fused, RmsNormBackwardIsDecodeThenBackwardBitForBit) {
  ForEachCase([](const char* codec, int64_t rows, int64_t cols) {
    const Encoded x(codec, rows, cols, 1);
    const Floats weight = RandomFloats(cols, 2, 0.5, 1), rstd = RandomFloats(rows, 3, 0.1, 1);
    const Floats dy = RandomFloats(rows * cols, 4);
    for (const bool accumulate : {false, true}) {
      const auto scratch = NanScratch(RmsNormBackwardScratch(rows, cols));
      Floats expected(dy.size(), 0.25f), expected_dweight(weight.size(), 0.5f);
      RmsNormBackward(dy.data(), x.decoded.data(), weight.data(), rstd.data(), rows, cols,
                      expected.data(), accumulate, expected_dweight.data(), accumulate,
                      scratch.get());
      const auto fused_scratch = NanScratch(RmsNormBackwardFromRowsScratch(rows, cols));
      Floats actual(dy.size(), 0.25f), dweight(weight.size(), 0.5f);
      RmsNormBackwardEncoded(dy.data(), x.columns, weight.data(), rstd.data(), actual.data(),
                             accumulate, dweight.data(), accumulate, fused_scratch.get());
      ExpectSameBits(actual, expected);
      ExpectSameBits(dweight, expected_dweight);
    }
  });
}

TEST(Fused, ResultsAreIndependentOfThreadCount) {
  ExpectThreadCountIndependent([] {
    constexpr int64_t kRows = 301, kCols = 576;
    const Encoded x("int4/32+o3", kRows, kCols, 1), gate_up("int8", kRows, 2 * kCols, 2);
    const Floats weight = RandomFloats(kCols, 3), rstd = RandomFloats(kRows, 4, 0.1, 1);
    const Floats dy = RandomFloats(kRows * kCols, 5);
    Floats all(2 * dy.size()), dx(dy.size()), dweight(kCols), y(dy.size());
    SwigluBackwardEncoded(dy.data(), {&gate_up.columns, 1}, kRows, kCols, all.data());
    const auto scratch = NanScratch(RmsNormBackwardFromRowsScratch(kRows, kCols));
    RmsNormBackwardEncoded(dy.data(), x.columns, weight.data(), rstd.data(), dx.data(), false,
                           dweight.data(), false, scratch.get());
    RmsNormRebuildEncoded(x.columns, weight.data(), rstd.data(), y.data());
    Append(all, dx);
    Append(all, dweight);
    Append(all, y);
    return all;
  });
}

}  // namespace
}  // namespace haversack
