#include <algorithm>
#include <limits>
#include <numbers>

#include "kernels/targets_test_util.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/math_test.cc"
#include "hwy/foreach_target.h"
#include "kernels/math-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

void ExpSpan(const float* x, int64_t count, float* y) {
  ForLanes(count, [&](auto at) HAVERSACK_LANES { at.Store(Exp(at.Load(x)), y); });
}

void SigmoidSpan(const float* x, int64_t count, float* y) {
  ForLanes(count, [&](auto at) HAVERSACK_LANES { at.Store(Sigmoid(at.Load(x)), y); });
}

void NormalCdfSpan(const float* x, int64_t count, float* y) {
  ForLanes(count, [&](auto at) HAVERSACK_LANES {
    const VecF32 v = at.Load(x);
    at.Store(NormalCdf(v, HalfSquareExp(v)), y);
  });
}

float SumSpan(const float* x, int64_t count) {
  return SumLanes(
      count, [&](auto at) HAVERSACK_LANES { return hn::Add(at.Load(x), hn::Set(F32(), 1.0f)); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(ExpSpan);
HWY_EXPORT(SigmoidSpan);
HWY_EXPORT(NormalCdfSpan);
HWY_EXPORT(SumSpan);

namespace {

Floats Grid(float begin, float end, int64_t count) {
  Floats x(count);
  for (int64_t i = 0; i < count; ++i) {
    x[i] = begin + (end - begin) * static_cast<float>(i) / static_cast<float>(count - 1);
  }
  return x;
}

double MaxUlps(const Floats& x, const Floats& y, double (*reference)(double)) {
  double max = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = reference(x[i]);
    const double ulp = std::ldexp(1.0, std::ilogb(expected) - 23);
    max = std::max(max, std::abs(y[i] - expected) / ulp);
  }
  return max;
}

TEST(VectorMath, ExpIsWithin2Ulp) {
  ForEachTarget([] {
    const Floats x = Grid(-87.3f, 88.36f, 200001);
    Floats y(x.size());
    HWY_DYNAMIC_DISPATCH(ExpSpan)(x.data(), static_cast<int64_t>(x.size()), y.data());
    EXPECT_LT(MaxUlps(x, y, [](double v) { return std::exp(v); }), 2);
  });
}

TEST(VectorMath, ExpAtTheEdges) {
  ForEachTarget([] {
    const float inf = std::numeric_limits<float>::infinity();
    const Floats x = {0, -0.0f, -inf, inf, -1e4f, 1e4f, -87.4f, 88.4f, NAN, 1e38f, -1e38f};
    Floats y(x.size());
    HWY_DYNAMIC_DISPATCH(ExpSpan)(x.data(), static_cast<int64_t>(x.size()), y.data());
    EXPECT_TRUE(std::isnan(y[8]));
    y[8] = 0;
    EXPECT_EQ(y, (Floats{1, 1, 0, inf, 0, inf, 0, inf, 0, inf, 0}));
  });
}

TEST(VectorMath, SigmoidIsWithin4Ulp) {
  ForEachTarget([] {
    const Floats x = Grid(-87, 30, 200001);
    Floats y(x.size());
    HWY_DYNAMIC_DISPATCH(SigmoidSpan)(x.data(), static_cast<int64_t>(x.size()), y.data());
    EXPECT_LT(MaxUlps(x, y, [](double v) { return 1 / (1 + std::exp(-v)); }), 4);
  });
}

TEST(VectorMath, NormalCdfKeepsRelativeAccuracyInTheTail) {
  ForEachTarget([] {
    const Floats x = Grid(-13, 9, 200001);
    Floats y(x.size());
    HWY_DYNAMIC_DISPATCH(NormalCdfSpan)(x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = 0.5 * std::erfc(-x[i] / std::numbers::sqrt2);
      // Without fused multiply-add the exponent x^2 / 2 is off by a rounding of itself. At x = 0
      // two halves meet: the step there is part of the error bound.
      const double roundings = 16 + x[i] * x[i] / 2;
      ASSERT_NEAR(y[i], expected, roundings * kEps * expected) << "x = " << x[i];
    }
  });
}

TEST(VectorMath, SumLanesIgnoresLanesBeyondTheEnd) {
  ForEachTarget([] {
    for (int64_t count = 0; count < 150; ++count) {
      const Floats x(count, 1.0f);
      EXPECT_EQ(HWY_DYNAMIC_DISPATCH(SumSpan)(x.data(), count), 2.0f * static_cast<float>(count));
    }
  });
}

}  // namespace
}  // namespace haversack
#endif
