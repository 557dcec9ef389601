#include "kernels/adamw.h"

#include <algorithm>
#include <cmath>

#include "kernels/flat.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

void AdamWSpan(float* weight, const float* grad, float* m, float* v, int64_t count,
               const AdamWStep& step) {
  const auto set = [](double value)
                       HAVERSACK_LANES { return hn::Set(F32(), static_cast<float>(value)); };
  const VecF32 grad_scale = set(step.grad_scale);
  const VecF32 decay = set(1 - step.lr * step.weight_decay);
  const VecF32 m_rate = set(1 - step.beta1);
  const VecF32 beta2 = set(step.beta2);
  const VecF32 v_rate = set(1 - step.beta2);
  const VecF32 step_size = set(step.lr / step.bias_correction1);
  const VecF32 root_scale = set(1 / std::sqrt(step.bias_correction2));
  const VecF32 epsilon = set(step.epsilon);
  ForLanes(count, [&](auto at) HAVERSACK_LANES {
    const VecF32 g = hn::Mul(at.Load(grad), grad_scale);
    const VecF32 m_old = at.Load(m);
    const VecF32 m_new = hn::MulAdd(hn::Sub(g, m_old), m_rate, m_old);
    const VecF32 v_new = hn::MulAdd(hn::Mul(g, g), v_rate, hn::Mul(at.Load(v), beta2));
    const VecF32 denominator = hn::MulAdd(hn::Sqrt(v_new), root_scale, epsilon);
    const VecF32 decayed = hn::Mul(at.Load(weight), decay);
    at.Store(m_new, m);
    at.Store(v_new, v);
    at.Store(hn::NegMulAdd(hn::Div(m_new, denominator), step_size, decayed), weight);
  });
}

// Four sums a lane pair, in double.
double SquaredNormSpan(const float* x, int64_t count) {
  const hn::ScalableTag<double> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d64));
  auto sum0 = hn::Zero(d64), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  const auto add = [&](auto& sum, const float* p) HAVERSACK_LANES {
    const auto value = hn::PromoteTo(d64, hn::LoadU(d32, p));
    sum = hn::MulAdd(value, value, sum);
  };
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    add(sum0, x + i);
    add(sum1, x + i + lanes);
    add(sum2, x + i + 2 * lanes);
    add(sum3, x + i + 3 * lanes);
  }
  double total =
      hn::GetLane(hn::SumOfLanes(d64, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < count; ++i) total += static_cast<double>(x[i]) * x[i];
  return total;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(AdamWSpan);
HWY_EXPORT(SquaredNormSpan);

void AdamWUpdate(float* weight, const float* grad, float* m, float* v, int64_t count,
                 const AdamWStep& step) {
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AdamWSpan)
    (weight + begin, grad + begin, m + begin, v + begin, end - begin, step);
  });
}

double SquaredNorm(const float* x, int64_t count) {
  constexpr int64_t kMaxBlocks = 256;
  constexpr int64_t kMinBlock = 4096;
  const int64_t size = std::max(kMinBlock, (count + kMaxBlocks - 1) / kMaxBlocks);
  const int64_t blocks = (count + size - 1) / size;
  double partials[kMaxBlocks];
  ParallelFor(blocks, /*grain=*/4, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * size;
      partials[block] =
          HWY_DYNAMIC_DISPATCH(SquaredNormSpan)(x + begin, std::min(size, count - begin));
    }
  });
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += partials[block];
  return total;
}

}  // namespace haversack
#endif
