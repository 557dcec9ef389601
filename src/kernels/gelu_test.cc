#include "kernels/gelu.h"

#include <numbers>

#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double GeluErf(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }

struct Variant {
  const char* name;
  double (*reference)(double);
  void (*forward)(const float*, int64_t, float*);
  void (*backward)(const float*, const float*, int64_t, float*);
};
constexpr Variant kVariants[] = {
    {"tanh", GeluTanh, GeluTanhForward, GeluTanhBackward},
    {"erf", GeluErf, GeluErfForward, GeluErfBackward},
};

template <typename Body>
void ForEachVariantAndTarget(const Body& body) {
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    ForEachTarget([&] { body(variant); });
  }
}

TEST(Gelu, ForwardMatchesDoubleReferenceAlsoInPlace) {
  ForEachVariantAndTarget([](const Variant& variant) {
    for (const int64_t count : {1, 15, 16, 1000}) {
      Floats x = RandomFloats(count, 1, 2);
      Doubles expected;
      for (const float v : x) expected.push_back(variant.reference(v));
      Floats y(x.size());
      variant.forward(x.data(), count, y.data());
      // Relative error of the distribution function in the negative tail: that of the exponent,
      // some 4 roundings of up to 40; elsewhere some 20 roundings. The values there are below 1e-2.
      ExpectClose(y, expected, 24, 0.1);
      variant.forward(x.data(), count, x.data());
      ExpectSameBits(x, y);
    }
  });
}

TEST(Gelu, ErfKeepsRelativeAccuracyInTheTail) {
  ForEachTarget([] {
    for (const float x : {-3.0f, -5.0f, -8.0f, -12.0f}) {
      float y;
      GeluErfForward(&x, 1, &y);
      // Without fused multiply-add x^2 / 2 is off by half a rounding of itself, and so is the
      // result.
      EXPECT_NEAR(y / GeluErf(x), 1, (20 + x * x / 2) * kEps);
    }
  });
}

TEST(Gelu, BackwardMatchesNumericGradientAlsoInPlace) {
  ForEachVariantAndTarget([](const Variant& variant) {
    for (const int64_t count : {1, 15, 16, 1000}) {
      const Floats x = RandomFloats(count, 1, 2), dy = RandomFloats(count, 2);
      Doubles expected;
      for (int64_t i = 0; i < count; ++i) {
        expected.push_back(
            dy[i] * (variant.reference(x[i] + 1e-4) - variant.reference(x[i] - 1e-4)) / 2e-4);
      }
      Floats dx(x.size());
      variant.backward(dy.data(), x.data(), count, dx.data());
      ExpectClose(dx, expected, 30, MaxAbs(ToDouble(dy)));
      Floats over_x = x, over_dy = dy;
      variant.backward(dy.data(), over_x.data(), count, over_x.data());
      variant.backward(over_dy.data(), x.data(), count, over_dy.data());
      ExpectSameBits(over_x, dx);
      ExpectSameBits(over_dy, dx);
    }
  });
}

TEST(Gelu, SaturatesAndKeepsNan) {
  ForEachVariantAndTarget([](const Variant& variant) {
    const Floats x = {1e4f, -1e4f, 0, 60, -60, NAN}, dy(6, 2);
    Floats y(6), dx(6);
    variant.forward(x.data(), 6, y.data());
    variant.backward(dy.data(), x.data(), 6, dx.data());
    EXPECT_TRUE(std::isnan(y.back()) && std::isnan(dx.back()));
    const Floats y_expected = {1e4f, 0, 0, 60, 0}, dx_expected = {2, 0, 1, 2, 0};
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_FLOAT_EQ(y[i], y_expected[i]);
      EXPECT_FLOAT_EQ(dx[i], dx_expected[i]);
    }
  });
}

TEST(Gelu, ResultIsIndependentOfThreadCount) {
  ForEachVariantAndTarget([](const Variant& variant) {
    ExpectThreadCountIndependent([&] {
      const Floats x = RandomFloats(70001, 1, 2), dy = RandomFloats(70001, 2);
      Floats y(x.size()), dx(x.size());
      variant.forward(x.data(), 70001, y.data());
      variant.backward(dy.data(), x.data(), 70001, dx.data());
      Append(y, dx);
      return y;
    });
  });
}

}  // namespace
}  // namespace haversack
