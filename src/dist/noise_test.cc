#include "dist/noise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "dist/batch_size.h"
#include "dist/sketch.h"

namespace haversack {
namespace {

// A gradient of norm `norm` and samples that are N(gradient, sigma^2 I): the trace is count
// sigma^2.
struct Problem {
  int64_t count = 400;
  double norm = 1;
  double sigma = 0.2;

  double trace() const { return static_cast<double>(count) * sigma * sigma; }
  double norm_test() const { return trace() / (kNormEta * kNormEta * norm * norm); }
  // Along the gradient there is one direction's noise, across it that of the others.
  double augmented() const {
    const double along = sigma * sigma / (kInnerTheta * kInnerTheta * norm * norm);
    const double across = (trace() - sigma * sigma) / (kOrthogonalNu * kOrthogonalNu);
    return std::max(along, across / (norm * norm));
  }
  // The mean of `samples` samples.
  std::vector<float> Mean(int64_t samples, uint64_t seed, uint64_t round) const {
    const RandomStream random({.seed = seed, .step = round});
    std::vector<float> g(count);
    for (int64_t i = 0; i < count; ++i) {
      g[i] = static_cast<float>(norm / std::sqrt(count) +
                                sigma / std::sqrt(samples) * random.Normal(i));
    }
    return g;
  }
};

std::vector<GradientPart> PartsOf(const std::vector<std::vector<float>>& gradients,
                                  const std::vector<int64_t>& samples) {
  std::vector<GradientPart> parts;
  for (size_t m = 0; m < gradients.size(); ++m) {
    parts.push_back({gradients[m], static_cast<double>(samples[m])});
  }
  return parts;
}

TEST(Noise, IsTheFormulaOfStoredGradients) {
  // Two dimensions, by hand: gbar = (1*(3,0) + 3*(1,2)) / 4 = (1.5, 1.5).
  const std::vector<std::vector<float>> g = {{3, 0}, {1, 2}};
  const NoiseSample s = *MeasureNoise(PartsOf(g, {1, 3}));
  // 1*|(1.5,-1.5)|^2 + 3*|(-.5,.5)|^2 = 4.5 + 1.5.
  EXPECT_DOUBLE_EQ(s.t, 6);
  EXPECT_DOUBLE_EQ(s.t_par, 0);  // both differences are at right angles to gbar
  EXPECT_DOUBLE_EQ(s.g2, 4.5 - 6.0 / 4);
}

TEST(Noise, OnePartSaysNothing) {
  const std::vector<std::vector<float>> g = {{3, 0}, {1, 2}};
  EXPECT_FALSE(MeasureNoise(PartsOf({g[0]}, {4})));
  EXPECT_FALSE(MeasureNoise(PartsOf(g, {4, 0})));
  EXPECT_FALSE(MeasureNoise({}));
}

// The request settles at the known value, for workers of equal and of unequal batches from 1 on,
// sketched or not. Of two samples a round G2 is 1 with a standard deviation of about 8 sqrt(2/400),
// and sketches add some 9 sqrt(2/4096): 150 rounds leave 6 %.
TEST(Noise, TheRequestedBatchConvergesToTheKnownOne) {
  const Problem problem;
  for (const bool sketched : {false, true}) {
    for (const std::vector<int64_t>& samples : std::vector<std::vector<int64_t>>{
             {1, 1}, {8, 8}, {1, 1, 1, 1}, {1, 4, 16, 3}, {2, 2, 2, 2, 2, 2, 2, 2}}) {
      double norm = 0, augmented = 0;
      double t = 0, t_par = 0, g2 = 0;
      const int rounds = 150;
      for (int round = 0; round < rounds; ++round) {
        std::vector<std::vector<float>> gradients;
        for (size_t m = 0; m < samples.size(); ++m) {
          gradients.push_back(problem.Mean(samples[m], m, round));
          if (!sketched) continue;
          const Sketch sketch = SketchOf(gradients[m].data(), problem.count, round);
          gradients[m].assign(sketch.begin(), sketch.end());
        }
        const NoiseSample s = *MeasureNoise(PartsOf(gradients, samples));
        t += s.t, t_par += s.t_par, g2 += s.g2;
      }
      const NoiseAverage pooled = {t / rounds, t_par / rounds, g2 / rounds};
      norm = *pooled.Request(BatchTest::kNorm);
      augmented = *pooled.Request(BatchTest::kAugmented);
      EXPECT_NEAR(norm / problem.norm_test(), 1, 0.2) << samples.size() << " " << sketched;
      EXPECT_NEAR(augmented / problem.augmented(), 1, 0.2) << samples.size() << " " << sketched;
    }
  }
}

TEST(Noise, WithoutASignalNothingIsAsked) {
  NoiseAverage average;
  EXPECT_FALSE(average.Request(BatchTest::kNorm));
  average.Add({.t = 10, .t_par = 1, .g2 = -1});
  EXPECT_FALSE(average.Request(BatchTest::kNorm));
  average.Add({.t = 10, .t_par = 1, .g2 = 2});
  // Weights .8 * .2 and .2: G2 = -.16 + .4, t = 3.6.
  EXPECT_NEAR(*average.Request(BatchTest::kNorm), 3.6 / 0.64 / 0.24, 1e-9);
}

TEST(Sketch, IsLinearAndKeepsInnerProducts) {
  const int64_t count = 50'000;
  const RandomStream random({.seed = 3});
  std::vector<float> x(count), y(count), sum(count);
  double xy = 0, xx = 0, yy = 0;
  for (int64_t i = 0; i < count; ++i) {
    x[i] = random.Normal(2 * i);
    y[i] = 0.5f * x[i] + random.Normal(2 * i + 1);
    sum[i] = x[i] + y[i];
    xy += x[i] * y[i], xx += x[i] * x[i], yy += y[i] * y[i];
  }
  const Sketch a = SketchOf(x.data(), count, 1), b = SketchOf(y.data(), count, 1);
  const Sketch c = SketchOf(sum.data(), count, 1);
  double product = 0;
  for (int64_t i = 0; i < kSketchWidth; ++i) {
    EXPECT_NEAR(a[i] + b[i], c[i], 1e-4);
    product += a[i] * b[i];
  }
  // Four standard deviations.
  EXPECT_NEAR(product, xy, 4 * std::sqrt(2 * xx * yy / kSketchWidth));
  EXPECT_NE(SketchOf(x.data(), count, 2), a);
}

TEST(BatchSize, SumsExactlyToWhatIsSaidAtEachBoundary) {
  EXPECT_EQ(PlannedSizes(12), (std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12}));
  EXPECT_EQ(PlannedSizes(1), (std::vector<int64_t>{1}));
  const int64_t m = 8;
  EXPECT_EQ(UsedBatch(0.2, m), 1);
  EXPECT_EQ(UsedBatch(1, m), 1);
  EXPECT_EQ(UsedBatch(1.01, m), 2);
  EXPECT_EQ(UsedBatch(5, m), 6);
  EXPECT_EQ(UsedBatch(8, m), 8);
  EXPECT_EQ(UsedBatch(9, m), 8);
  EXPECT_EQ(UsedBatch(16, m), 8);
  EXPECT_EQ(UsedBatch(16.5, m), 24);
  EXPECT_EQ(UsedBatch(24, m), 24);
  EXPECT_EQ(UsedBatch(25, m), 32);
  EXPECT_EQ(UsedBatch(7, 7), 7);
  for (double b = 1; b < 100; ++b) EXPECT_LE(UsedBatch(b, m), UsedBatch(b + 1, m));
}

}  // namespace
}  // namespace haversack
