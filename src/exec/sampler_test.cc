#include "exec/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace haversack {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kDraws = 10'000;

// How often each id is drawn over kDraws seeds, as a share.
std::vector<double> Shares(const std::vector<float>& logits, SamplingOptions options) {
  std::vector<int> counts(logits.size(), 0);
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    options.seed = seed;
    ++counts[SampleToken(logits, options, 7)];
  }
  std::vector<double> shares;
  for (const int count : counts) shares.push_back(count / double{kDraws});
  return shares;
}

// Five standard deviations of a share near one half.
constexpr double kTolerance = 0.025;

TEST(Sampler, SharesOverSeedsAreThoseOfTheSoftmax) {
  // Two near equals among 318 that are far below: 0.502 and 0.496.
  std::vector<float> logits(320, 0);
  logits[98] = 11.3119f;
  logits[99] = 0.999f * 11.3119f;
  const std::vector<double> shares = Shares(logits, {.temperature = 1});
  EXPECT_NEAR(shares[98], 0.502, kTolerance);
  EXPECT_NEAR(shares[99], 0.496, kTolerance);
}

TEST(Sampler, SharesOverPositionsAreThoseOfTheSoftmax) {
  const std::vector<float> logits = {0, std::log(3.0f), -kInfinity};
  std::array<int, 3> counts = {};
  for (uint64_t position = 0; position < kDraws; ++position) {
    ++counts[SampleToken(logits, {.temperature = 1, .seed = 5}, position)];
  }
  EXPECT_NEAR(counts[1] / double{kDraws}, 0.75, kTolerance);
  EXPECT_EQ(counts[2], 0);
}

TEST(Sampler, TemperatureDividesTheLogits) {
  const std::vector<float> logits = {0, 2 * std::log(3.0f)};
  EXPECT_NEAR(Shares(logits, {.temperature = 2})[1], 0.75, kTolerance);
}

TEST(Sampler, TopPKeepsTheFewestTokensThatHoldTheShare) {
  // Probabilities 1/2, 1/3, 1/6, not in order.
  const std::vector<float> logits = {std::log(2.0f), std::log(1.0f), std::log(3.0f)};
  const std::vector<double> half = Shares(logits, {.temperature = 1, .top_p = 0.45});
  EXPECT_DOUBLE_EQ(half[0] + half[1], 0);
  const std::vector<double> two = Shares(logits, {.temperature = 1, .top_p = 0.8});
  EXPECT_NEAR(two[2], 0.6, kTolerance);
  EXPECT_DOUBLE_EQ(two[1], 0);
  EXPECT_NEAR(Shares(logits, {.temperature = 1, .top_p = 1})[1], 1.0 / 6, kTolerance);
}

TEST(Sampler, NoTemperatureAndNoShareTakeTheBest) {
  const std::vector<float> logits = {0, 11.30f, 11.31f, -5};
  for (const double temperature : {0.0, 5e-324, 1e-300, 1e-40, 1e-6}) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
      EXPECT_EQ(SampleToken(logits, {.temperature = temperature, .seed = seed}, seed), 2);
    }
  }
  for (const double top_p : {0.0, 1e-300, 1e-9}) {
    for (const double temperature : {1.0, 1e30, std::numeric_limits<double>::max()}) {
      EXPECT_EQ(SampleToken(logits, {.temperature = temperature, .top_p = top_p}, 1), 2);
    }
  }
}

TEST(Sampler, TheFirstOfEqualsIsTheBest) {
  const std::vector<float> logits = {-1, 3, 3, 3};
  EXPECT_EQ(SampleToken(logits, {}, 0), 1);
  EXPECT_EQ(SampleToken(logits, {.temperature = 1, .top_p = 1e-9}, 0), 1);
}

TEST(Sampler, AnyTemperatureIsFiniteAndTheHighestIsUniform) {
  const std::vector<float> logits = {3e38f, -3e38f};
  EXPECT_NEAR(Shares(logits, {.temperature = 1e300})[0], 0.5, kTolerance);
  EXPECT_DOUBLE_EQ(Shares(logits, {.temperature = 1})[0], 1);
}

TEST(Sampler, ExcludedTokensAreNeverDrawn) {
  const std::vector<float> logits = {-kInfinity, 0, -kInfinity};
  for (const double temperature : {0.0, 1.0, 1e300}) {
    EXPECT_DOUBLE_EQ(Shares(logits, {.temperature = temperature})[1], 1);
  }
}

TEST(Sampler, LogitsThatAreNoNumbersAreRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> broken = {
      {0, nan}, {nan, 0}, {nan, nan}, {0, kInfinity}, {-kInfinity, -kInfinity}};
  for (const std::vector<float>& logits : broken) {
    for (const double temperature : {0.0, 1.0}) {
      EXPECT_THROW(SampleToken(logits, {.temperature = temperature}, 0), UserError);
    }
  }
}

}  // namespace
}  // namespace haversack
