#include "kernels/gelu.h"

#include "kernels/flat.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gelu.cc"
#include "hwy/foreach_target.h"
#include "kernels/math-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

// (1 + tanh(u)) / 2 = sigmoid(2 u), and 2 u = x * (kLinear + kCubic * x^2).
constexpr float kLinear = 1.59576912160573f;   // 2 sqrt(2 / pi)
constexpr float kCubic = 0.0713548162726009f;  // 0.044715 * kLinear

void GeluTanhForwardSpan(const float* x, int64_t count, float* y) {
  const VecF32 linear = hn::Set(F32(), kLinear), cubic = hn::Set(F32(), kCubic);
  ForLanes(count, [&](auto at) HAVERSACK_LANES {
    const VecF32 v = at.Load(x);
    const VecF32 s = Sigmoid(hn::Mul(v, hn::MulAdd(hn::Mul(v, v), cubic, linear)));
    at.Store(hn::Mul(v, s), y);
  });
}

void GeluTanhBackwardSpan(const float* dy, const float* x, int64_t count, float* dx) {
  const VecF32 one = hn::Set(F32(), 1.0f);
  const VecF32 linear = hn::Set(F32(), kLinear), cubic = hn::Set(F32(), kCubic);
  const VecF32 three_cubic = hn::Set(F32(), 3 * kCubic);
  ForLanes(count, [&](auto at) HAVERSACK_LANES {
    const VecF32 v = at.Load(x);
    const VecF32 v2 = hn::Mul(v, v);
    const VecF32 s = Sigmoid(hn::Mul(v, hn::MulAdd(v2, cubic, linear)));
    const VecF32 inner = hn::Mul(v, hn::MulAdd(v2, three_cubic, linear));
    const VecF32 slope = hn::Mul(s, hn::MulAdd(hn::Sub(one, s), inner, one));
    at.Store(hn::Mul(at.Load(dy), slope), dx);
  });
}

void GeluErfForwardSpan(const float* x, int64_t count, float* y) {
  ForLanes(count, [&](auto at) HAVERSACK_LANES {
    const VecF32 v = at.Load(x);
    at.Store(hn::Mul(v, NormalCdf(v, HalfSquareExp(v))), y);
  });
}

void GeluErfBackwardSpan(const float* dy, const float* x, int64_t count, float* dx) {
  const VecF32 density_at_0 = hn::Set(F32(), 0.398942280401433f);  // 1 / sqrt(2 pi)
  ForLanes(count, [&](auto at) HAVERSACK_LANES {
    const VecF32 v = at.Load(x);
    const VecF32 e = HalfSquareExp(v);
    const VecF32 slope = hn::MulAdd(v, hn::Mul(e, density_at_0), NormalCdf(v, e));
    at.Store(hn::Mul(at.Load(dy), slope), dx);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(GeluTanhForwardSpan);
HWY_EXPORT(GeluTanhBackwardSpan);
HWY_EXPORT(GeluErfForwardSpan);
HWY_EXPORT(GeluErfBackwardSpan);

void GeluTanhForward(const float* x, int64_t count, float* y) {
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluTanhForwardSpan)(x + begin, end - begin, y + begin);
  });
}

void GeluTanhBackward(const float* dy, const float* x, int64_t count, float* dx) {
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluTanhBackwardSpan)(dy + begin, x + begin, end - begin, dx + begin);
  });
}

void GeluErfForward(const float* x, int64_t count, float* y) {
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluErfForwardSpan)(x + begin, end - begin, y + begin);
  });
}

void GeluErfBackward(const float* dy, const float* x, int64_t count, float* dx) {
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluErfBackwardSpan)(dy + begin, x + begin, end - begin, dx + begin);
  });
}

}  // namespace haversack
#endif
