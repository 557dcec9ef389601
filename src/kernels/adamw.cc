#include "kernels/adamw.h"

#include <algorithm>

#include "kernels/flat.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw.cc"
#include "hwy/foreach_target.h"
#include "kernels/adamw-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

void AdamWSpan(float* weight, const float* grad, float* m, float* v, int64_t count,
               const AdamWStep& step) {
  const AdamWLanes adamw(step);
  ForLanes(count, [&](auto at) HAVERSACK_LANES {
    VecF32 m_new = at.Load(m), v_new = at.Load(v);
    adamw.Moments(at.Load(grad), m_new, v_new);
    const VecF32 updated = adamw.Weight(at.Load(weight), adamw.Direction(m_new, v_new));
    at.Store(m_new, m);
    at.Store(v_new, v);
    at.Store(updated, weight);
  });
}

void DirectionSpan(const float* grad, float* m, float* v, int64_t count, const AdamWStep& step,
                   float* direction) {
  const AdamWLanes adamw(step);
  ForLanes(count, [&](auto at) HAVERSACK_LANES {
    VecF32 m_new = at.Load(m), v_new = at.Load(v);
    adamw.Moments(at.Load(grad), m_new, v_new);
    at.Store(m_new, m);
    at.Store(v_new, v);
    at.Store(adamw.Direction(m_new, v_new), direction);
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
HWY_EXPORT(DirectionSpan);
HWY_EXPORT(SquaredNormSpan);

void AdamWUpdate(float* weight, const float* grad, float* m, float* v, int64_t count,
                 const AdamWStep& step) {
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AdamWSpan)
    (weight + begin, grad + begin, m + begin, v + begin, end - begin, step);
  });
}

void AdamWDirection(const float* grad, float* m, float* v, int64_t count, const AdamWStep& step,
                    float* direction) {
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DirectionSpan)
    (grad + begin, m + begin, v + begin, end - begin, step, direction + begin);
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
