// exp, sigmoid and the normal distribution function on f32 vectors. NaN goes in, NaN comes out
// (Highway's own Exp turns it into 0, which would hide a diverged run). Errors are in ulp of the
// f32 result.
#if defined(HAVERSACK_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAVERSACK_KERNELS_MATH_INL_H_
#undef HAVERSACK_KERNELS_MATH_INL_H_
#else
#define HAVERSACK_KERNELS_MATH_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {

// e^x within 2 ulp for x below 88.37; 0 where the result would be below 2^-126.
// e^x = 2^n e^r, |r| <= ln(2) / 2 (Cody and Waite), e^r = 1 + r + r^2 q(r) with q of degree 4
// fitted for the least relative error (3e-9; own fit).
HWY_INLINE VecF32 ExpBelowOverflow(VecF32 x) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  // Added to x / ln(2), it rounds to an integer and leaves n + 127, the biased exponent of 2^n, in
  // the lowest bits.
  const VecF32 magic = hn::Set(d, 12582912.0f + 127.0f);  // 1.5 * 2^23 + 127
  const VecF32 shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const VecF32 n = hn::Sub(shifted, magic);
  const VecF32 power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  // ln(2) = 355/512 - 2.12...e-4; n * 355/512 is exact.
  VecF32 r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::MulAdd(n, hn::Set(d, 2.12194440e-4f), r);
  VecF32 e = hn::MulAdd(hn::Set(d, 0.00138145973f), r, hn::Set(d, 0.0083687170f));
  e = hn::MulAdd(e, r, hn::Set(d, 0.0416683881f));
  e = hn::MulAdd(e, r, hn::Set(d, 0.166665206f));
  e = hn::MulAdd(e, r, hn::Set(d, 0.499999934f));
  e = hn::MulAdd(e, r, hn::Set(d, 1.0f));
  e = hn::MulAdd(e, r, hn::Set(d, 1.0f));
  // The comparison is false for NaN, which therefore stays.
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, -87.33654f)), hn::Zero(d), hn::Mul(e, power));
}

// The same for any x: infinity from 88.37 on.
HWY_INLINE VecF32 Exp(VecF32 x) {
  const F32 d;
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.37f)), hn::Inf(d), ExpBelowOverflow(x));
}

// 1 / (1 + e^-x) within 4 ulp; 0 below x = -88.37.
HWY_INLINE VecF32 Sigmoid(VecF32 x) {
  const VecF32 one = hn::Set(F32(), 1.0f);
  return hn::Div(one, hn::Add(one, Exp(hn::Neg(x))));
}

// e^(-x^2 / 2). The rounding error of x^2 / 2, which would be magnified by its size, is corrected
// to first order where the target has fused multiply-add.
HWY_INLINE VecF32 HalfSquareExp(VecF32 x) {
  // Beyond 20 the result is 0 anyway, and the square stays finite.
  const VecF32 bound = hn::Set(F32(), 20.0f);
  const VecF32 a = hn::Abs(x);
  const VecF32 z = hn::IfThenElse(hn::Gt(a, bound), bound, a);
  const VecF32 half = hn::Mul(z, hn::Set(F32(), 0.5f));
  const VecF32 square = hn::Mul(half, z);
  const VecF32 rest = hn::MulSub(half, z, square);
  const VecF32 e = ExpBelowOverflow(hn::Neg(square));
  return hn::NegMulAdd(e, rest, e);
}

// Phi(x), given HalfSquareExp(x). With z = |x| / sqrt(2), Phi(-|x|) = e^(-z^2) erfcx(z) / 2, and
// (1 + 2 z) erfcx(z) is a polynomial of degree 9 in (z - 2) / (z + 2), fitted on z <= 10 for the
// least relative error (1.3e-8; own fit). Keeps its relative accuracy in the negative tail.
HWY_INLINE VecF32 NormalCdf(VecF32 x, VecF32 half_square_exp) {
  const F32 d;
  const VecF32 one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f), bound = hn::Set(d, 20.0f);
  const VecF32 a = hn::Abs(x);
  const VecF32 z = hn::Mul(hn::IfThenElse(hn::Gt(a, bound), bound, a), hn::Set(d, 0.707106781f));
  // One division for both quotients.
  const VecF32 left = hn::Add(z, two), right = hn::MulAdd(z, two, one);
  const VecF32 inverse = hn::Div(one, hn::Mul(left, right));
  const VecF32 u = hn::Mul(hn::Mul(hn::Sub(z, two), right), inverse);
  VecF32 p = hn::MulAdd(hn::Set(d, -0.000401717911f), u, hn::Set(d, -0.00123188054f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.00131372505f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.00863327429f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.00805959991f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.0542047121f));
  p = hn::MulAdd(p, u, hn::Set(d, 0.164055267f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.16603139f));
  p = hn::MulAdd(p, u, hn::Set(d, -0.0927639767f));
  p = hn::MulAdd(p, u, hn::Set(d, 1.27697839f));
  const VecF32 half_erfcx = hn::Mul(hn::Mul(p, hn::Set(d, 0.5f)), hn::Mul(left, inverse));
  const VecF32 tail = hn::Mul(half_square_exp, half_erfcx);
  return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(one, tail), tail);
}

}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#endif
