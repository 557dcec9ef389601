// Stochastic rounding: unbiased, and fresh for every row, column and key.
#include <array>
#include <map>

#include "codec/codec.h"
#include "codec/codec_error.h"
#include "codec/format.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

constexpr int64_t kRows = 4096;
constexpr int64_t kCols = 64;

// What `value` decodes to, in a matrix whose groups of 32 columns have the range [0, 15] (int4:
// step 1) or [-127, 127] (int8: step 1): 62 columns of `value` a row.
Floats RoundedTimes(const char* text, float value, const RandomKey& key) {
  const CodecSpec codec = ParseCodec(text, "test");
  const bool int4 = codec.format->name() == "int4";
  Floats x(kRows * kCols, value);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kCols; c += 32) {
      x[r * kCols + c] = int4 ? 0.0f : -127.0f;
      x[r * kCols + c + 1] = int4 ? 15.0f : 127.0f;
    }
  }
  const EncodedShape shape{codec, kRows, kCols, {}};
  std::vector<std::byte> bytes(EncodedBytes(codec, kRows, kCols));
  Encode(shape, x.data(), kCols, key, bytes.data());
  Floats y(x.size()), values;
  Decode(shape, bytes.data(), y.data(), kCols);
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    if (i % 32 >= 2) values.push_back(y[i]);
  }
  return values;
}

RandomKey Key(uint64_t seed, uint32_t layer = 0, uint64_t step = 0) {
  return {.seed = seed, .purpose = RandomPurpose::kRounding, .layer = layer, .step = step};
}

TEST(StochasticRounding, IsUnbiasedWithinSamplingError) {
  for (const char* text : {"int4/32+sr", "int8/32+sr"}) {
    for (const float value : {0.001f, 0.25f, 0.5f, 2.75f, 7.999f, 14.3f}) {
      SCOPED_TRACE(::testing::Message() << text << " " << value);
      const Floats values = RoundedTimes(text, value, Key(1));
      const double count = static_cast<double>(values.size());
      double sum = 0;
      for (const float v : values) {
        ASSERT_TRUE(v == std::floor(value) || v == std::floor(value) + 1) << v;
        sum += v;
      }
      const double p = value - std::floor(value);
      const double deviation = std::sqrt(p * (1 - p) / count);
      // 5 standard deviations, and the resolution of the random numbers.
      EXPECT_NEAR(sum / count, value, 5 * deviation + 0x1p-15);
    }
  }
}

TEST(StochasticRounding, WhatIsACodeStaysThatCode) {
  for (const float value : {0.0f, 1.0f, 8.0f, 15.0f}) {
    for (const float v : RoundedTimes("int4/32+sr", value, Key(1))) ASSERT_EQ(v, value);
  }
  // int8 has less room above the last code: one in 2^15, the resolution of the random numbers, may
  // stand next to it.
  for (const float value : {-127.0f, -1.0f, 0.0f, 1.0f, 127.0f}) {
    const Floats values = RoundedTimes("int8/32+sr", value, Key(1));
    const double expected = static_cast<double>(values.size()) * 0x1p-15;
    double others = 0;
    for (const float v : values) {
      ASSERT_NEAR(v, value, 1);
      others += v != value;
    }
    EXPECT_LE(others, expected + 5 * std::sqrt(expected)) << value;
  }
}

// The share of equal bits between two draws of fair coins is 1/2 within 5 / (2 sqrt(n)). Columns of
// a row are independent two by two only, so it is rows that count.
void ExpectIndependent(const Floats& a, const Floats& b) {
  ASSERT_EQ(a.size(), b.size());
  double equal = 0;
  for (size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i];
  const double count = static_cast<double>(a.size());
  EXPECT_NEAR(equal / count, 0.5, 2.5 / std::sqrt(static_cast<double>(kRows)));
}

TEST(StochasticRounding, DrawsAnewForEverySeedLayerStepRowAndColumn) {
  const Floats draw = RoundedTimes("int4/32+sr", 0.5f, Key(1));
  ExpectSameBits(RoundedTimes("int4/32+sr", 0.5f, Key(1)), draw);
  ExpectIndependent(draw, RoundedTimes("int4/32+sr", 0.5f, Key(2)));
  ExpectIndependent(draw, RoundedTimes("int4/32+sr", 0.5f, Key(1, 1)));
  ExpectIndependent(draw, RoundedTimes("int4/32+sr", 0.5f, Key(1, 0, 1)));
  // Neighbours at every distance up to two rows (60 drawn columns a row), and two rows by two.
  for (size_t distance = 1; distance <= 120; ++distance) {
    SCOPED_TRACE(distance);
    ExpectIndependent(Floats(draw.begin(), draw.end() - static_cast<int64_t>(distance)),
                      Floats(draw.begin() + static_cast<int64_t>(distance), draw.end()));
  }
}

// Not the halves only: the chance of rounding up at each threshold is that of a uniform number, in
// every column by itself and over columns (chi-squared over 16 classes of 4096 rows).
TEST(StochasticRounding, RandomNumbersAreUniformInEveryColumn) {
  std::array<Floats, 16> draws;
  for (size_t k = 1; k < 16; ++k) {
    draws[k] = RoundedTimes("int4/32+sr", static_cast<float>(k) / 16, Key(3));
  }
  const size_t columns = draws[1].size() / kRows;
  double worst = 0;
  for (size_t c = 0; c < columns; ++c) {
    std::array<double, 16> classes{};
    for (size_t r = 0; r < kRows; ++r) {
      size_t first_up = 16;  // rounding up begins where the random number passes 1 - k / 16
      for (size_t k = 15; k >= 1; --k) {
        if (draws[k][r * columns + c] == 1) first_up = k;
      }
      ++classes[first_up - 1];
    }
    double chi_squared = 0;
    for (const double n : classes) {
      chi_squared += (n - kRows / 16.0) * (n - kRows / 16.0) / (kRows / 16.0);
    }
    worst = std::max(worst, chi_squared);
  }
  // 15 degrees of freedom: one in a million of 60 columns passes 61.
  EXPECT_LT(worst, 61);
}

// Stochastic rounding doubles the squared error of nearest rounding: E p (1 - p) = 1/6 against
// 1/12.
TEST(StochasticRounding, HasTwiceTheSquaredErrorOfNearest) {
  const Floats x = RandomFloats(512 * 576, 1);
  const auto error = [&](const char* text) {
    return MeasureError({ParseCodec(text, "test"), 512, 576, {}}, x.data(), 576, Key(1)).Relative();
  };
  // Not exactly: a group's extremes sit on codes, where neither errs, and the step that covers the
  // range is up to 2^-7 larger than the nearest one, which is 2^-6 of the squared error.
  EXPECT_NEAR(error("int8+sr") / error("int8"), 2, 2 * (0x1p-6 + 0.02));
  EXPECT_NEAR(error("int4/32+sr") / error("int4/32"), 2, 2 * (0x1p-6 + 0.02));
}

}  // namespace
}  // namespace haversack
