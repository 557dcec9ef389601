#include "kernels/adamw.h"

#include <limits>

#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

AdamWStep StepNumber(int t) {
  return {.lr = 3e-3,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .bias_correction1 = 1 - std::pow(0.9, t),
          .bias_correction2 = 1 - std::pow(0.95, t),
          .grad_scale = 0.5};
}

TEST(AdamW, ThreeStepsMatchTorch) {
  // torch.optim.AdamW in float64 on the same gradients, halved as grad_scale does.
  const Doubles weight_expected = {0.49885371185, -1.24674505341, 1.99199106271, -0.00407718797522,
                                   -0.00192397163393};
  const Doubles m_expected = {-0.00695, 0.00315, 0.034, 0.025045, 1.005e-05};
  const Doubles v_expected = {0.0012128125, 0.0011934375, 0.37575, 0.003125011875, 1.7128125e-09};
  const std::vector<Floats> gradients = {{0.1f, -0.2f, 3.0f, 0.0f, 1e-4f},
                                         {-0.3f, 0.25f, 2.5f, 1e-3f, -2e-4f},
                                         {0.05f, 0.0f, -4.0f, 0.5f, 3e-4f}};
  ForEachTarget([&] {
    Floats weight = {0.5f, -1.25f, 2.0f, 0.0f, 1e-3f}, m(5), v(5);
    for (int t = 1; t <= 3; ++t) {
      AdamWUpdate(weight.data(), gradients[t - 1].data(), m.data(), v.data(), 5, StepNumber(t));
    }
    // A step makes 3 roundings of the weight, some 10 of an update of about lr; m's terms
    // reach 1.5.
    ExpectClose(weight, weight_expected, 3 * 3, 3e-3 * 4);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(m[i], m_expected[i], 10 * kEps * 0.1 * std::abs(gradients[2][i]) + 1e-8);
      EXPECT_NEAR(v[i], v_expected[i], 10 * kEps * v_expected[i]);
    }
  });
}

TEST(AdamW, MatchesDoubleReferenceForOddSizes) {
  ForEachTarget([] {
    for (const int64_t count : {1, 17, 1000}) {
      const AdamWStep s = StepNumber(7);
      Floats weight = RandomFloats(count, 1), m = RandomFloats(count, 2, 0.1);
      Floats v = RandomFloats(count, 3, 0.01, 0.1);
      const Floats grad = RandomFloats(count, 4);
      Doubles expected;
      for (int64_t i = 0; i < count; ++i) {
        const double g = grad[i] * s.grad_scale;
        const double m1 = s.beta1 * m[i] + (1 - s.beta1) * g;
        const double v1 = s.beta2 * v[i] + (1 - s.beta2) * g * g;
        expected.push_back(weight[i] * (1 - s.lr * s.weight_decay) -
                           s.lr / s.bias_correction1 * m1 /
                               (std::sqrt(v1) / std::sqrt(s.bias_correction2) + s.epsilon));
      }
      AdamWUpdate(weight.data(), grad.data(), m.data(), v.data(), count, s);
      ExpectClose(weight, expected, 4, 10 * 3e-3);
    }
  });
}

TEST(AdamW, WithoutGradientOnlyTheDecayActs) {
  ForEachTarget([] {
    Floats weight = {1.0f, -2.0f}, m(2), v(2);
    const Floats grad(2);
    AdamWUpdate(weight.data(), grad.data(), m.data(), v.data(), 2,
                {.lr = 0.5, .weight_decay = 0.5, .bias_correction1 = 0.1, .bias_correction2 = 0.1});
    EXPECT_EQ(weight, (Floats{0.75f, -1.5f}));
    EXPECT_EQ(m, Floats(2));
    EXPECT_EQ(v, Floats(2));
  });
}

TEST(AdamW, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      const int64_t count = 100003;
      Floats weight = RandomFloats(count, 1), m(count), v(count);
      const Floats grad = RandomFloats(count, 4);
      AdamWUpdate(weight.data(), grad.data(), m.data(), v.data(), count, StepNumber(1));
      Append(weight, m);
      Append(weight, v);
      return weight;
    });
  });
}

TEST(SquaredNorm, MatchesTheSumInLongDouble) {
  ForEachTarget([] {
    for (const int64_t count : {0, 1, 7, 4097, 100003}) {
      const Floats x = RandomFloats(count, 1);
      long double expected = 0;
      for (const float v : x) expected += static_cast<long double>(v) * v;
      EXPECT_NEAR(SquaredNorm(x.data(), count), static_cast<double>(expected),
                  static_cast<double>(expected) * 1e-12);
    }
  });
}

TEST(SquaredNorm, IsFiniteExactlyWhenEveryElementIs) {
  ForEachTarget([] {
    const float largest = std::numeric_limits<float>::max();
    Floats x(9001, largest);
    EXPECT_NEAR(SquaredNorm(x.data(), 9001) / std::pow(double{largest}, 2), 9001, 1e-9);
    for (const float bad : {NAN, static_cast<float>(INFINITY), static_cast<float>(-INFINITY)}) {
      for (const int64_t at : {0, 4500, 9000}) {
        Floats y(9001, 1.0f);
        y[at] = bad;
        EXPECT_FALSE(std::isfinite(SquaredNorm(y.data(), 9001)));
      }
    }
  });
}

TEST(SquaredNorm, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    const Floats x = RandomFloats(1100003, 1);
    ExpectThreadCountIndependent([&] {
      const double norm = SquaredNorm(x.data(), static_cast<int64_t>(x.size()));
      Floats bits(2);
      std::memcpy(bits.data(), &norm, sizeof(norm));
      return bits;
    });
  });
}

}  // namespace
}  // namespace haversack
