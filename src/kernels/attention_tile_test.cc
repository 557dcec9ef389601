#include "kernels/attention_tile.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>
#include <vector>

namespace haversack::attention {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kWidth = 4096;

// Rows of one tile, 64-byte aligned.
struct alignas(64) Row {
  float at[kWidth];
};

class TileOnEveryTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// With a log-sum-exp of 0, SoftmaxGradient turns the scores into 2^score.
void Exp2InPlace(Row& row, int64_t width) {
  static Row ignored;
  const float zero = 0;
  SoftmaxGradient({.scores = row.at,
                   .stride = kWidth,
                   .tokens = 1,
                   .heads = 1,
                   .width = width,
                   .visible = width},
                  &zero, &zero, ignored.at);
}

TEST_P(TileOnEveryTarget, Exp2IsWithinTwoUlp) {
  for (const double begin : {-99.9, -10.0, -1.0, -0.01, 0.0, 20.0}) {
    static Row row;
    std::vector<float> x(kWidth);
    for (int64_t i = 0; i < kWidth; ++i) row.at[i] = x[i] = begin + i * 0.0024;
    Exp2InPlace(row, kWidth);
    for (int64_t i = 0; i < kWidth; ++i) {
      const double want = std::exp2(double{x[i]});
      EXPECT_NEAR(row.at[i], want, 2 * std::ldexp(1.0, std::ilogb(want) - 23)) << x[i];
    }
  }
}

TEST_P(TileOnEveryTarget, Exp2KeepsNaNAndOneAndDropsWhatIsTiny) {
  static Row row;
  row.at[0] = kNaN;
  row.at[1] = std::nanf("1");  // low payload bits reach the exponent field
  row.at[2] = -std::numeric_limits<float>::infinity();
  row.at[3] = -3e38f;
  row.at[4] = -100.5f;
  row.at[5] = 0;
  Exp2InPlace(row, 6);
  EXPECT_TRUE(std::isnan(row.at[0]));
  EXPECT_TRUE(std::isnan(row.at[1]));
  EXPECT_EQ(row.at[2], 0);
  EXPECT_EQ(row.at[3], 0);
  EXPECT_EQ(row.at[4], 0);
  EXPECT_EQ(row.at[5], 1);
}

TEST_P(TileOnEveryTarget, FutureKeysAreZeroWhateverTheyHold) {
  static Row scores[4], d_scores[4];
  const auto fill = [](Row& row) {
    for (float& x : row.at) x = kNaN;
    for (int64_t i = 0; i < 20; ++i) row.at[i] = 0;
  };
  const ScoreTile tile{.scores = scores[0].at,
                       .stride = kWidth,
                       .tokens = 2,
                       .heads = 2,
                       .width = 70,
                       .visible = 19};
  for (Row& row : scores) fill(row);
  for (int64_t head = 0; head < 2; ++head) scores[head].at[19] = kNaN;  // unseen by the first token
  for (Row& row : d_scores) fill(row);
  float row_max[4], row_sum[4];
  OnlineSoftmax(tile, true, 0, row_max, row_sum, nullptr);
  for (int64_t row = 0; row < 4; ++row) {
    const int64_t seen = row < 2 ? 19 : 20;
    EXPECT_EQ(row_max[row], 0);
    EXPECT_EQ(row_sum[row], seen);
    for (int64_t i = 0; i < 70; ++i) EXPECT_EQ(scores[row].at[i], i < seen) << row << " " << i;
  }

  for (Row& row : scores) fill(row);
  const float lse2[4] = {}, delta[4] = {-1, -1, -1, -1};
  SoftmaxGradient(tile, lse2, delta, d_scores[0].at);
  for (int64_t row = 0; row < 4; ++row) {
    const int64_t seen = row < 2 ? 19 : 20;
    for (int64_t i = 0; i < 70; ++i) {
      EXPECT_EQ(scores[row].at[i], i < seen) << row << " " << i;
      EXPECT_EQ(d_scores[row].at[i], i < seen) << row << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, TileOnEveryTarget,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

}  // namespace
}  // namespace haversack::attention
