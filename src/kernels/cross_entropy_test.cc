#include "kernels/cross_entropy.h"

#include <limits>

#include "base/error.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Shape {
  int64_t rows, vocab, stride;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {2, 7, 7}, {3, 16, 20}, {3, 1025, 1030}, {4, 5003, 5003}};

struct Expected {
  Doubles losses, gradient;  // gradient with the stride, padding as in the logits
};

Expected Reference(const Floats& logits, const Shape& s, const std::vector<int32_t>& targets,
                   double scale) {
  Expected out{.losses = Doubles(s.rows), .gradient = ToDouble(logits)};
  for (int64_t r = 0; r < s.rows; ++r) {
    const float* x = &logits[r * s.stride];
    const double max = *std::max_element(x, x + s.vocab);
    double sum = 0;
    for (int64_t v = 0; v < s.vocab; ++v) sum += std::exp(x[v] - max);
    const int32_t target = targets[r];
    if (target >= 0) out.losses[r] = std::log(sum) + max - x[target];
    for (int64_t v = 0; v < s.vocab; ++v) {
      const double onehot = v == target ? 1 : 0;
      out.gradient[r * s.stride + v] =
          target < 0 ? 0 : (std::exp(x[v] - max) / sum - onehot) * scale;
    }
  }
  return out;
}

TEST(CrossEntropy, MatchesDoubleReference) {
  ForEachTarget([] {
    for (const Shape& s : kShapes) {
      Floats logits = RandomFloats(s.rows * s.stride, 1, 3);
      auto targets = RandomIds(s.rows, 2, static_cast<uint32_t>(s.vocab));
      if (s.rows > 1) targets[1] = -1;
      const Expected expected = Reference(logits, s, targets, 0.25);
      Floats losses(s.rows), again(s.rows);
      CrossEntropyForward(logits.data(), s.stride, s.rows, s.vocab, targets.data(), again.data());
      CrossEntropyForwardBackward(logits.data(), s.stride, s.rows, s.vocab, targets.data(), 0.25f,
                                  losses.data());
      // logit - max, at most 25, is rounded once, and so its exponential is off by up to 25
      // roundings; exp itself 4, a sum of 1024 / 4 terms in one lane at worst (scalar) 256.
      ExpectClose(losses, expected.losses, 300, 1);
      ExpectClose(logits, expected.gradient, 300, 1e-9);
      ExpectSameBits(again, losses);
    }
  });
}

TEST(CrossEntropy, GradientMatchesNumericGradientOfTheLoss) {
  const Shape s{.rows = 3, .vocab = 33, .stride = 33};
  const std::vector<int32_t> targets = {5, -100, 32};
  const Floats start = RandomFloats(99, 1, 3);
  const Doubles expected = NumericGradient(ToDouble(start), [&](const Doubles& x) {
    double loss = 0;
    for (int64_t r = 0; r < 3; ++r) {
      if (targets[r] < 0) continue;
      double sum = 0;
      for (int64_t v = 0; v < 33; ++v) sum += std::exp(x[r * 33 + v]);
      loss += 0.5 * (std::log(sum) - x[r * 33 + targets[r]]);
    }
    return loss;
  });
  ForEachTarget([&] {
    Floats logits = start, losses(3);
    CrossEntropyForwardBackward(logits.data(), s.stride, s.rows, s.vocab, targets.data(), 0.5f,
                                losses.data());
    ExpectClose(logits, expected, 50, 1);
  });
}

TEST(CrossEntropy, UniformLogitsOfALargeVocabularyLoseLogVocab) {
  ForEachTarget([] {
    for (const int64_t vocab : {49152, 151936}) {
      Floats logits(vocab, 3.5f);
      const int32_t target = 17;
      float loss;
      CrossEntropyForwardBackward(logits.data(), vocab, 1, vocab, &target, 1.0f, &loss);
      EXPECT_FLOAT_EQ(loss, static_cast<float>(std::log(static_cast<double>(vocab))));
      double sum = 0;
      for (const float v : logits) sum += v;
      // One rounding for each of the equal probabilities, which together are 1.
      EXPECT_NEAR(sum, 0, 4 * kEps);
    }
  });
}

TEST(CrossEntropy, LargeLogitsNeitherOverflowNorGiveNan) {
  ForEachTarget([] {
    const Floats start = {1e4f, -1e4f, 1e4f, 0, -kInf};
    for (const auto& [target, loss_expected] : std::vector<std::pair<int32_t, float>>{
             {0, std::log(2.0f)}, {1, 2e4f + std::log(2.0f)}, {4, kInf}}) {
      Floats logits = start;
      float loss;
      CrossEntropyForwardBackward(logits.data(), 5, 1, 5, &target, 1.0f, &loss);
      EXPECT_FLOAT_EQ(loss, loss_expected);
      Floats expected = {0.5f, 0, 0.5f, 0, 0};
      expected[target] -= 1;
      EXPECT_EQ(logits, expected);
    }
  });
}

TEST(CrossEntropy, NonFiniteLogitsGiveANanLossAndGradient) {
  ForEachTarget([] {
    for (const float bad : {NAN, kInf}) {
      for (const int at : {0, 37, 39}) {
        Floats logits(40, 1.0f);
        logits[at] = bad;
        const int32_t target = 3;
        float loss = 0, loss_only = 0;
        CrossEntropyForward(logits.data(), 40, 1, 40, &target, &loss_only);
        CrossEntropyForwardBackward(logits.data(), 40, 1, 40, &target, 1.0f, &loss);
        EXPECT_TRUE(std::isnan(loss) && std::isnan(loss_only));
        EXPECT_TRUE(std::isnan(logits[at]) && std::isnan(logits[3]));
      }
    }
    Floats logits(3, -kInf);
    const int32_t target = 0;
    float loss = 0;
    CrossEntropyForwardBackward(logits.data(), 3, 1, 3, &target, 1.0f, &loss);
    EXPECT_TRUE(std::isnan(loss));
  });
}

TEST(CrossEntropy, MaskedRowsAreZeroEvenWhereLogitsAreNan) {
  ForEachTarget([] {
    Floats logits(2 * 19, NAN), losses(2, 5.0f);
    const std::vector<int32_t> targets = {-1, -100};
    CrossEntropyForwardBackward(logits.data(), 19, 2, 19, targets.data(), 1.0f, losses.data());
    EXPECT_EQ(logits, Floats(2 * 19, 0.0f));
    EXPECT_EQ(losses, Floats(2, 0.0f));
  });
}

TEST(CrossEntropy, TargetBeyondTheVocabularyIsABug) {
  Floats logits(8);
  const int32_t target = 8;
  float loss;
  EXPECT_THROW(CrossEntropyForward(logits.data(), 8, 1, 8, &target, &loss), InternalError);
}

TEST(CrossEntropy, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      Floats logits = RandomFloats(37 * 3001, 1, 3), losses(37);
      const auto targets = RandomIds(37, 2, 3001);
      CrossEntropyForwardBackward(logits.data(), 3001, 37, 3001, targets.data(), 0.1f,
                                  losses.data());
      Append(logits, losses);
      return logits;
    });
  });
}

}  // namespace
}  // namespace haversack
