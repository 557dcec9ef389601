#include "kernels/adamw_8bit.h"

#include <algorithm>
#include <cmath>

#include "kernels/dynamic_code.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

struct Store {
  std::vector<uint8_t> m, v;
  Floats m_scale, v_scale;

  explicit Store(int64_t count)
      : m(count), v(count), m_scale(MomentBlocks(count)), v_scale(MomentBlocks(count)) {}
  Moments8Bit View() { return {m.data(), v.data(), m_scale.data(), v_scale.data()}; }
  double M(int64_t i) const {
    return double{SignedDynamicCode().value[m[i]]} * m_scale[i / kMomentBlock];
  }
  double V(int64_t i) const {
    return double{UnsignedDynamicCode().value[v[i]]} * v_scale[i / kMomentBlock];
  }
};

// Distance of x to the nearest value of the code.
double NearestDistance(const DynamicCode& code, double x) {
  double best = 1e9;
  for (const float value : code.value) best = std::min(best, std::abs(x - value));
  return best;
}

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

// With both betas 0 the moments are the gradient and its square.
constexpr AdamWStep kForget = {.lr = 0, .beta1 = 0, .beta2 = 0};

TEST(DynamicCode, HoldsThePublishedValues) {
  const DynamicCode& s = SignedDynamicCode();
  const DynamicCode& u = UnsignedDynamicCode();
  EXPECT_EQ(s.count, 129);
  EXPECT_EQ(u.count, 256);
  // create_dynamic_map of the authors' library: centres of equal bins of each decade.
  EXPECT_FLOAT_EQ(s.value[128], 5.5e-7f);
  EXPECT_FLOAT_EQ(s.value[129], 3.25e-6f);
  EXPECT_FLOAT_EQ(s.value[130], 7.75e-6f);
  EXPECT_FLOAT_EQ(s.value[254], 0.1f + 0.9f * 63.5f / 64);
  EXPECT_FLOAT_EQ(s.value[126], -5.5e-7f);
  EXPECT_FLOAT_EQ(s.value[0], -(0.1f + 0.9f * 63.5f / 64));
  EXPECT_EQ(s.value[127], 0);
  EXPECT_EQ(s.value[255], 1);
  EXPECT_FLOAT_EQ(u.value[1], 3.25e-7f);
  EXPECT_FLOAT_EQ(u.value[254], 0.1f + 0.9f * 127.5f / 128);
  EXPECT_EQ(u.value[0], 0);
  EXPECT_EQ(u.value[255], 1);
  for (const DynamicCode* code : {&s, &u}) {
    EXPECT_TRUE(std::is_sorted(code->value.begin(), code->value.end()));
  }
}

TEST(AdamW8Bit, EveryMagnitudeRoundsToItsNearestCode) {
  // One large element a block sets the scale to 1; the others sweep eight decades and both sides
  // of every threshold.
  Floats sweep;
  // A threshold, itself rounded to f32, moves a choice between two codes by 2 kEps x at most.
  for (const DynamicCode* code : {&SignedDynamicCode(), &UnsignedDynamicCode()}) {
    for (int k = 1; k < code->count; ++k) {
      const float t = code->threshold[k];
      for (const float x : {t, std::nextafter(t, 0.0f), std::nextafter(t, 1.0f)})
        sweep.push_back(x);
      sweep.push_back(code->magnitude[k]);
    }
  }
  for (int i = 0; i < 3000; ++i) sweep.push_back(std::pow(10.0f, -8.0f * i / 3000));
  const auto blocks = static_cast<int64_t>((sweep.size() + 254) / 255);
  Floats grad(blocks * kMomentBlock);
  for (size_t i = 0; i < sweep.size(); ++i) {
    grad[i / 255 * kMomentBlock + 1 + i % 255] = i % 2 == 0 ? sweep[i] : -sweep[i];
  }
  for (int64_t b = 0; b < blocks; ++b) grad[b * kMomentBlock] = 1;
  const auto count = static_cast<int64_t>(grad.size());
  ForEachTarget([&] {
    Floats weight(count);
    Store store(count);
    AdamWUpdate8Bit(weight.data(), grad.data(), store.View(), count, kForget);
    for (int64_t i = 0; i < count; ++i) {
      const double g = grad[i], square = static_cast<double>(static_cast<float>(g * g));
      ASSERT_NEAR(std::abs(g - store.M(i)), NearestDistance(SignedDynamicCode(), g),
                  2 * kEps * std::abs(g));
      if (square > 1.7e-7) {  // below, rounding up to the smallest code is not to the nearest
        ASSERT_NEAR(std::abs(square - store.V(i)), NearestDistance(UnsignedDynamicCode(), square),
                    4 * kEps * square);
      } else {
        ASSERT_EQ(store.v[i], square > 0 ? 1 : 0) << g;
      }
    }
  });
}

TEST(AdamW8Bit, OneStepFromZeroMomentsEqualsAdamW) {
  ForEachTarget([] {
    for (const int64_t count : {1, 255, 256, 257, 1000}) {
      const Floats grad = RandomFloats(count, 4);
      Floats weight = RandomFloats(count, 1), expected = weight;
      Floats m(count), v(count);
      Store store(count);
      AdamWUpdate8Bit(weight.data(), grad.data(), store.View(), count, StepNumber(1));
      AdamWUpdate(expected.data(), grad.data(), m.data(), v.data(), count, StepNumber(1));
      ExpectSameBits(weight, expected);
    }
  });
}

TEST(AdamW8Bit, EachStepIsAdamWsFromTheStoredMoments) {
  constexpr int64_t kCount = 1000;
  ForEachTarget([] {
    Floats weight = RandomFloats(kCount, 1);
    Store store(kCount);
    for (int t = 1; t <= 5; ++t) {
      Floats grad = RandomFloats(kCount, 10 + t, std::pow(10.0, -t));
      const AdamWStep s = StepNumber(t);
      Doubles expected(kCount), m(kCount), v(kCount);
      for (int64_t i = 0; i < kCount; ++i) {
        const double g = grad[i] * s.grad_scale;
        m[i] = s.beta1 * store.M(i) + (1 - s.beta1) * g;
        v[i] = s.beta2 * store.V(i) + (1 - s.beta2) * g * g;
        expected[i] = weight[i] * (1 - s.lr * s.weight_decay) -
                      s.lr / s.bias_correction1 * m[i] /
                          (std::sqrt(v[i]) / std::sqrt(s.bias_correction2) + s.epsilon);
      }
      AdamWUpdate8Bit(weight.data(), grad.data(), store.View(), kCount, s);
      // The update is at most lr * m / sqrt(v), and |m| / sqrt(v) < 10 here.
      ExpectClose(weight, expected, 12, 10 * 3e-3);
      for (int64_t i = 0; i < kCount; ++i) {
        // A bin of the signed code is at most 0.9 of its decade's start wide, so half of it plus
        // the absent -1 is within 45% + the smallest code; a large value is within 1.5%.
        const double m_unit = store.m_scale[i / kMomentBlock];
        EXPECT_NEAR(store.M(i), m[i],
                    std::abs(m[i]) > 0.1 * m_unit ? 0.0075 * m_unit
                                                  : 0.46 * std::abs(m[i]) + 1e-6 * m_unit);
      }
    }
  });
}

TEST(AdamW8Bit, AnElementWhoseGradientStopsDoesNotJump) {
  ForEachTarget([] {
    constexpr int64_t kCount = kMomentBlock;
    Floats weight(kCount), grad(kCount, 1.0f);
    grad[1] = 1e-5f;  // its square is far below the smallest code of the block
    Store store(kCount);
    AdamWUpdate8Bit(weight.data(), grad.data(), store.View(), kCount, StepNumber(1));
    grad[1] = 0;
    const float before = weight[1];
    AdamWUpdate8Bit(weight.data(), grad.data(), store.View(), kCount, StepNumber(2));
    EXPECT_LT(std::abs(weight[1] - before), 3e-3);
  });
}

TEST(AdamW8Bit, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      constexpr int64_t kCount = 20000;
      Floats weight = RandomFloats(kCount, 1);
      Store store(kCount);
      for (int t = 1; t <= 3; ++t) {
        const Floats grad = RandomFloats(kCount, 10 + t);
        AdamWUpdate8Bit(weight.data(), grad.data(), store.View(), kCount, StepNumber(t));
      }
      Append(weight, store.m_scale);
      Append(weight, Floats(store.m.begin(), store.m.end()));
      Append(weight, Floats(store.v.begin(), store.v.end()));
      return weight;
    });
  });
}

}  // namespace
}  // namespace haversack
