#include "codec/codec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "codec/bf16.h"
#include "codec/cases_test_util.h"
#include "codec/codec_error.h"
#include "codec/format.h"

namespace haversack {
namespace {

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

}  // namespace
}  // namespace haversack
