#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/bf16.h"
#include "codec/cases_test_util.h"
#include "codec/codec.h"
#include "codec/format.h"

namespace haversack {
namespace {

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

}  // namespace
}  // namespace haversack
