// AdamW of one vector of elements, for the kernels that differ in how they hold the moments.
#if defined(HAVERSACK_KERNELS_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAVERSACK_KERNELS_ADAMW_INL_H_
#undef HAVERSACK_KERNELS_ADAMW_INL_H_
#else
#define HAVERSACK_KERNELS_ADAMW_INL_H_
#endif

#include <cmath>

#include "hwy/highway.h"
#include "kernels/adamw.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {

// A step's constants in every lane.
struct AdamWLanes {
  VecF32 grad_scale, decay, m_rate, beta2, v_rate, step_size, root_scale, epsilon;

  static HWY_INLINE VecF32 Of(double value) { return hn::Set(F32(), static_cast<float>(value)); }

  explicit HWY_INLINE AdamWLanes(const AdamWStep& step)
      : grad_scale(Of(step.grad_scale)),
        decay(Of(1 - step.lr * step.weight_decay)),
        m_rate(Of(1 - step.beta1)),
        beta2(Of(step.beta2)),
        v_rate(Of(1 - step.beta2)),
        step_size(Of(step.lr / step.bias_correction1)),
        root_scale(Of(1 / std::sqrt(step.bias_correction2))),
        epsilon(Of(step.epsilon)) {}

  // Advances both moments.
  HWY_INLINE void Moments(VecF32 grad, VecF32& m, VecF32& v) const {
    const VecF32 g = hn::Mul(grad, grad_scale);
    m = hn::MulAdd(hn::Sub(g, m), m_rate, m);
    v = hn::MulAdd(hn::Mul(g, g), v_rate, hn::Mul(v, beta2));
  }
  // m / (sqrt(v) / sqrt(bias_correction2) + epsilon)
  HWY_INLINE VecF32 Direction(VecF32 m, VecF32 v) const {
    return hn::Div(m, hn::MulAdd(hn::Sqrt(v), root_scale, epsilon));
  }
  HWY_INLINE VecF32 Weight(VecF32 weight, VecF32 direction) const {
    return hn::NegMulAdd(direction, step_size, hn::Mul(weight, decay));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#endif
