#include "codec/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "codec/bf16.h"
#include "codec/codec_error.h"
#include "codec/columns.h"
#include "codec/format.h"
#include "codec/reference_test_util.h"

namespace haversack {
namespace {

constexpr RandomKey kKey{.seed = 7, .purpose = RandomPurpose::kRounding, .layer = 3, .step = 11};

CodecSpec Codec(const std::string& text) { return ParseCodec(text, "test"); }

std::vector<std::byte> EncodeAll(const EncodedShape& shape, const float* x, int64_t stride,
                                 const RandomKey& key = kKey) {
  std::vector<std::byte> bytes(EncodedBytes(shape.codec, shape.rows, shape.cols), std::byte{0xA5});
  Encode(shape, x, stride, key, bytes.data());
  return bytes;
}

Floats RoundTrip(const EncodedShape& shape, const Floats& x, const RandomKey& key = kKey) {
  Floats y(x.size());
  Decode(shape, EncodeAll(shape, x.data(), shape.cols, key).data(), y.data(), shape.cols);
  return y;
}

// `count` columns spread over [0, cols), some of them neighbours.
std::vector<int32_t> SomeColumns(int count, int64_t cols) {
  std::vector<int32_t> columns;
  for (int i = 0; i < count; ++i) columns.push_back(static_cast<int32_t>(i * (cols - 1) / count));
  return columns;
}

struct Shape {
  int64_t rows, cols;
};
// Less than a chunk, whole chunks, groups of every size cut short, several of everything.
constexpr Shape kShapes[] = {{1, 1},  {2, 7},   {3, 32},  {2, 77},
                             {5, 96}, {3, 160}, {2, 579}, {4, 576}};

const char* const kAllCodecs[] = {"bf16",       "int8/32",    "int8",    "int8/128",
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

TEST(CodecText, ReadsWhatItWrites) {
  for (const char* text : kAllCodecs) {
    EXPECT_EQ(Codec(text).ToText(), text);
    EXPECT_EQ(Codec(Codec(text).ToText()), Codec(text));
  }
  EXPECT_EQ(Codec("int8/64").ToText(), "int8");
  EXPECT_EQ(Codec("int4+sr+o2"), Codec("int4+o2+sr"));
  const CodecSpec codec = Codec("int4/32+o6+sr");
  EXPECT_EQ(codec.format, &Int4Format());
  EXPECT_EQ(codec.group, 32);
  EXPECT_EQ(codec.outliers, 6);
  EXPECT_TRUE(codec.stochastic);
}

TEST(CodecText, ErrorsNameWhatIsKnown) {
  const auto message = [](const char* text) -> std::string {
    try {
      ParseCodec(text, "--actions");
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message("int5"), "--actions: codec 'int5' is unknown; known: bf16, int8, int4");
  EXPECT_EQ(message(""), "--actions: codec '' is unknown; known: bf16, int8, int4");
  EXPECT_EQ(message("bf16/32"), "--actions: codec 'bf16/32': bf16 takes no options");
  EXPECT_EQ(message("int8/48"), "--actions: codec 'int8/48': group size '48'; known: 32, 64, 128");
  EXPECT_EQ(message("int8/"), "--actions: codec 'int8/': group size ''; known: 32, 64, 128");
  const std::string options =
      " is not an option; known, once each: +oN (N outlier columns in bf16, 1 to 65536), +sr "
      "(stochastic rounding)";
  for (const char* option : {"", "o", "o0", "o-1", "o99999999999", "o6x", "rs"}) {
    const std::string text = std::string("int4/32+") + option;
    EXPECT_EQ(message(text.c_str()),
              fmt::format("--actions: codec '{}': '+{}'{}", text, option, options));
  }
  EXPECT_EQ(message("int4+o1+o2"), "--actions: codec 'int4+o1+o2': '+o2'" + options);
  EXPECT_EQ(message("int4+sr+sr"), "--actions: codec 'int4+sr+sr': '+sr'" + options);
}

TEST(CodecSize, IsWhatTheFormatsSay) {
  // Each section is rounded up to 64 bytes.
  EXPECT_EQ(EncodedBytes(Codec("bf16"), 2048, 576), 2048u * 576 * 2);
  EXPECT_EQ(EncodedBytes(Codec("bf16"), 3, 5), 64u);
  EXPECT_EQ(EncodedBytes(Codec("int8"), 2048, 576), 2048u * 576 + 2048 * 9 * 2);
  EXPECT_EQ(EncodedBytes(Codec("int8/128"), 2048, 576), 2048u * 576 + 2048 * 5 * 2);
  EXPECT_EQ(EncodedBytes(Codec("int4/32"), 2048, 576), 2048u * 288 + 2 * 2048 * 18 * 2);
  EXPECT_EQ(EncodedBytes(Codec("int4/32+o6"), 2048, 576),
            2048u * 288 + 2 * 2048 * 18 * 2 + 2048 * 6 * 2);
  // 3 rows of 77 columns: padded to 96, 48 bytes of codes each; 3 groups; 2 outliers.
  EXPECT_EQ(EncodedBytes(Codec("int4/32+o2"), 3, 77), 192u + 64 + 64 + 64);
  EXPECT_EQ(EncodedBytes(Codec("int4"), 0, 77), 0u);
}

TEST(Codec, RoundTripIsThePlainReference) {
  ForEachTarget([] {
    ForEachCase([](const EncodedShape& shape, const Floats& x) {
      if (shape.codec.stochastic) return;
      const int codes = shape.codec.format == &Int4Format() ? 15 : 127;
      const std::vector<int32_t> outliers(shape.outliers.begin(), shape.outliers.end());
      std::vector<int32_t> all(static_cast<size_t>(shape.cols));
      for (size_t c = 0; c < all.size(); ++c) all[c] = static_cast<int32_t>(c);
      // To the reference, bf16 is a codec whose columns are all outliers.
      const bool bf16 = shape.codec.format == &Bf16Format();
      ExpectSameBits(RoundTrip(shape, x), ReferenceRoundTrip(x, shape.rows, shape.cols,
                                                             bf16 ? shape.cols : shape.codec.group,
                                                             bf16 ? all : outliers, codes));
    });
  });
}

// Nearest: half a step; stochastic: less than one. The step from the definition, in double.
TEST(Codec, ErrorIsBoundedByTheGroupsStep) {
  ForEachCase([](const EncodedShape& shape, const Floats& x) {
    const Floats y = RoundTrip(shape, x);
    const bool bf16 = shape.codec.format == &Bf16Format();
    const int codes = shape.codec.format == &Int4Format() ? 15 : 127;
    const std::set<int32_t> excluded(shape.outliers.begin(), shape.outliers.end());
    for (int64_t i = 0; i < shape.rows * shape.cols; ++i) {
      const int64_t r = i / shape.cols, c = i % shape.cols;
      double bound;
      if (bf16 || excluded.contains(static_cast<int32_t>(c))) {
        bound = 0x1p-8 * std::abs(x[i]);
      } else {
        const int64_t begin = c / shape.codec.group * shape.codec.group;
        const int64_t end = std::min<int64_t>(begin + shape.codec.group, shape.cols);
        const ReferenceGroup group = MakeReferenceGroup(x.data() + r * shape.cols, begin, end,
                                                        excluded, codes, shape.codec.stochastic);
        // f32 arithmetic on codes and the group's largest value: a few roundings.
        const double rounding = 4 * kEps * (codes * group.step + std::abs(group.minimum));
        bound = (shape.codec.stochastic ? 1.0 + 0x1p-15 : 0.5) * group.step + rounding;
      }
      ASSERT_LE(std::abs(double{y[i]} - x[i]), bound) << "row " << r << " column " << c;
    }
  });
}

TEST(Codec, OutlierColumnsAreTheirBf16) {
  ForEachTarget([] {
    ForEachCase([](const EncodedShape& shape, const Floats& x) {
      const Floats y = RoundTrip(shape, x);
      for (int64_t r = 0; r < shape.rows; ++r) {
        for (const int32_t c : shape.outliers) {
          const int64_t i = r * shape.cols + c;
          EXPECT_EQ(y[i], FromBf16(RoundToBf16(x[i])));
        }
      }
    });
  });
}

// Values of 1e4 in outlier columns do not show in the others' errors, whatever they share a group
// with.
TEST(Codec, OutlierColumnsDoNotWidenTheirGroups) {
  ForEachTarget([] {
    for (const char* text : {"int4/32+o3", "int8/128+o3"}) {
      const std::vector<int32_t> outliers = {0, 33, 64};
      const EncodedShape shape{Codec(text), 1, 65, outliers};
      Floats x = RandomFloats(65, 1, 1, 5);
      const Floats calm = RoundTrip(shape, x);
      for (const int32_t c : outliers) x[c] = c == 33 ? -1e4f : 1e4f;
      const Floats y = RoundTrip(shape, x);
      for (int32_t c = 0; c < 65; ++c) {
        if (std::ranges::find(outliers, c) != outliers.end()) continue;
        EXPECT_EQ(y[c], calm[c]);
      }
    }
  });
}

TEST(Codec, ColumnRangesLeaveWhatIsBetweenThemUntouched) {
  ForEachTarget([] {
    ForEachCase([](const EncodedShape& shape, const Floats& x) {
      const int64_t stride = shape.cols + 5;
      Floats packed(shape.rows * stride, -77.0f);
      for (int64_t r = 0; r < shape.rows; ++r) {
        std::copy_n(x.begin() + r * shape.cols, shape.cols, packed.begin() + r * stride + 2);
      }
      // The last row ends with the range, so that sanitizers see a read beyond it.
      packed.resize(packed.size() - 3);
      const auto bytes = EncodeAll(shape, packed.data() + 2, stride);
      EXPECT_EQ(bytes, EncodeAll(shape, x.data(), shape.cols));
      const Floats y = RoundTrip(shape, x);
      Floats decoded(packed.size(), -55.0f);
      Decode(shape, bytes.data(), decoded.data() + 2, stride);
      for (size_t i = 0; i < decoded.size(); ++i) {
        const int64_t r = static_cast<int64_t>(i) / stride;
        const int64_t c = static_cast<int64_t>(i) % stride - 2;
        const bool inside = c >= 0 && c < shape.cols;
        ASSERT_EQ(decoded[i], inside ? y[r * shape.cols + c] : -55.0f) << r << " " << c;
      }
    });
  });
}

TEST(Codec, RowsDecodeAsTheWholeDoes) {
  ForEachCase([](const EncodedShape& shape, const Floats& x) {
    const auto bytes = EncodeAll(shape, x.data(), shape.cols);
    const Floats whole = RoundTrip(shape, x);
    for (int64_t r = 0; r < shape.rows; ++r) {
      Floats row(static_cast<size_t>(shape.cols));
      DecodeRows(shape, bytes.data(), r, r + 1, row.data(), shape.cols);
      ExpectSameBits(row,
                     Floats(whole.begin() + r * shape.cols, whole.begin() + (r + 1) * shape.cols));
    }
  });
}

TEST(Codec, EveryTargetGivesTheSameBytesAndTheSameValues) {
  ForEachCase([](const EncodedShape& shape, const Floats& x) {
    const auto bytes = EncodeAll(shape, x.data(), shape.cols);
    const Floats y = RoundTrip(shape, x);
    ForEachTarget([&] {
      EXPECT_EQ(EncodeAll(shape, x.data(), shape.cols), bytes);
      ExpectSameBits(RoundTrip(shape, x), y);
    });
  });
}

TEST(Codec, BytesAndValuesAreIndependentOfThreadCount) {
  for (const char* text : {"bf16", "int8+sr", "int4/32+o3+sr"}) {
    ExpectThreadCountIndependent([&] {
      const CodecSpec codec = Codec(text);
      const std::vector<int32_t> outliers = SomeColumns(codec.outliers, 579);
      const EncodedShape shape{codec, 301, 579, outliers};
      const Floats x = RandomFloats(301 * 579, 1);
      const auto bytes = EncodeAll(shape, x.data(), 579);
      Floats all(x.size());
      Decode(shape, bytes.data(), all.data(), 579);
      for (const std::byte b : bytes) all.push_back(static_cast<float>(b));
      const SquaredError error = MeasureError(shape, x.data(), 579, kKey);
      all.push_back(static_cast<float>(error.Relative()));
      return all;
    });
  }
}

TEST(Codec, ZerosStayZerosAndConstantsStayWithinHalfAStep) {
  ForEachTarget([] {
    for (const char* text : kAllCodecs) {
      const CodecSpec codec = Codec(text);
      if (codec.outliers > 0) continue;
      SCOPED_TRACE(text);
      const EncodedShape shape{codec, 2, 77, {}};
      EXPECT_EQ(RoundTrip(shape, Floats(154, 0.0f)), Floats(154, 0.0f));
      for (const float constant : {1.0f, -1.0f, 0.1f, 100.1f, -3e30f, 1e-30f}) {
        for (const float y : RoundTrip(shape, Floats(154, constant))) {
          // int4 and a minimum of another sign or far away: the step spans at most the rounding of
          // the minimum, 2^-7 of it over 15 codes. int8: 1/127 of the value.
          const double step = codec.format == &Int4Format() ? 0x1p-7 / 15 : 1.0 / 127;
          const double bound = codec.format == &Bf16Format() ? 0x1p-8 : (1 + 0x1p-7) * step;
          EXPECT_NEAR(y, constant, std::max(bound * std::abs(constant), 0x1p-110)) << constant;
        }
      }
    }
  });
}

TEST(Codec, TinyAndHugeValuesStayWithinTheirSteps) {
  ForEachTarget([] {
    for (const char* text : kAllCodecs) {
      const CodecSpec codec = Codec(text);
      if (codec.outliers > 0) continue;
      SCOPED_TRACE(text);
      const EncodedShape shape{codec, 1, 64, {}};
      const double step = codec.format == &Int4Format() ? 2.0 / 15 : 1.0 / 127;
      for (const float scale : {1e-45f, 1e-40f, 1e-36f, 1e-30f, 1e30f, 1.6e38f}) {
        Floats x(64);
        for (size_t i = 0; i < 64; ++i) x[i] = (static_cast<float>(i) / 32 - 1) * scale;
        const Floats y = RoundTrip(shape, x);
        for (size_t i = 0; i < 64; ++i) {
          EXPECT_NEAR(y[i], x[i], std::max(1.02 * step * scale, 0x1p-110)) << scale;
        }
      }
      // int4's range of -max to max does not fit f32: that counts as not finite.
      Floats x(64, std::numeric_limits<float>::max());
      x[5] = -x[5];
      const float y = RoundTrip(shape, x)[0];
      if (codec.format == &Int4Format()) {
        EXPECT_TRUE(std::isnan(y));
      } else {
        EXPECT_GE(y, 3.39e38f);
      }
    }
  });
}

TEST(Codec, NanAndInfinityShowInTheirGroupAndNowhereElse) {
  ForEachTarget([] {
    for (const char* text : kAllCodecs) {
      const CodecSpec codec = Codec(text);
      if (codec.outliers > 0) continue;
      const int64_t group = codec.format->grouped() ? codec.group : 1;
      for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
        for (const int64_t at : {0, 31, 70, 160, 192}) {
          SCOPED_TRACE(::testing::Message() << text << " " << bad << " at " << at);
          const EncodedShape shape{codec, 1, 193, {}};
          Floats x = RandomFloats(193, 1);
          x[at] = bad;
          const Floats y = RoundTrip(shape, x);
          for (int64_t c = 0; c < 193; ++c) {
            EXPECT_EQ(std::isfinite(y[c]), c / group != at / group) << c;
          }
          EXPECT_TRUE(std::isnan(y[at]) || !codec.format->grouped());
        }
      }
    }
  });
}

TEST(Codec, NanInAnOutlierColumnStaysThere) {
  ForEachTarget([] {
    const std::vector<int32_t> outliers = {1, 40, 64};
    for (const char* text : {"int4/32+o3", "int8+o3"}) {
      const EncodedShape shape{Codec(text), 1, 65, outliers};
      Floats x = RandomFloats(65, 1);
      x[40] = NAN;
      x[64] = INFINITY;
      const Floats y = RoundTrip(shape, x);
      for (int64_t c = 0; c < 65; ++c) EXPECT_EQ(std::isfinite(y[c]), c != 40 && c != 64);
      EXPECT_TRUE(std::isnan(y[40]));
      EXPECT_EQ(y[64], INFINITY);
    }
  });
}

TEST(Codec, AColumnAloneInItsGroupMayBeAnOutlier) {
  const std::vector<int32_t> outliers = {32};
  const EncodedShape shape{Codec("int4/32+o1"), 1, 33, outliers};
  Floats x = RandomFloats(33, 1);
  x[32] = 500;
  EXPECT_EQ(RoundTrip(shape, x)[32], 500);
}

TEST(Columns, LargestAreByMaximumThenByNumber) {
  ForEachTarget([] {
    // [3, 5] with stride 6.
    const Floats x = {1, -9, 2, 0, 3, 99, 1, 0, -7, 7, 3, 99, 2, 8, 0, 1, 3, 99};
    EXPECT_EQ(ColumnMaxima(x.data(), 6, 3, 5), (Floats{2, 9, 7, 7, 3}));
    EXPECT_EQ(LargestColumns(x.data(), 6, 3, 5, 2), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(LargestColumns(x.data(), 6, 3, 5, 3), (std::vector<int32_t>{1, 2, 3}));
    EXPECT_TRUE(LargestColumns(x.data(), 6, 3, 5, 0).empty());
    EXPECT_EQ(LargestColumns(x.data(), 6, 3, 5, 5), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  });
}

TEST(Columns, NanIsTheLargest) {
  const Floats x = {1, NAN, INFINITY, 5, 2, 100};
  EXPECT_EQ(LargestColumns(x.data(), 3, 2, 3, 1), (std::vector<int32_t>{1}));
  EXPECT_EQ(LargestColumns(x.data(), 3, 2, 3, 2), (std::vector<int32_t>{1, 2}));
}

TEST(CodecError, IsThatOfTheWholeRoundTrip) {
  ForEachCase([](const EncodedShape& shape, const Floats& x) {
    const Floats y = RoundTrip(shape, x);
    double error = 0, norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
      norm += double{x[i]} * x[i];
    }
    const SquaredError measured = MeasureError(shape, x.data(), shape.cols, kKey);
    // Sums of cols positive terms in f32, and the rounding of each difference and square.
    const double tolerance = kEps * (static_cast<double>(shape.cols) + 6);
    EXPECT_NEAR(measured.error, error, tolerance * error);
    EXPECT_NEAR(measured.norm, norm, tolerance * norm);
    EXPECT_NEAR(measured.Relative(), error / norm, 3 * tolerance * error / norm);
  });
}

TEST(CodecError, ZerosHaveNoneAndNanShows) {
  const EncodedShape shape{Codec("int4"), 3, 70, {}};
  Floats x(210, 0.0f);
  EXPECT_EQ(MeasureError(shape, x.data(), 70, kKey).Relative(), 0);
  x[100] = NAN;
  EXPECT_TRUE(std::isnan(MeasureError(shape, x.data(), 70, kKey).Relative()));
}

}  // namespace
}  // namespace haversack
