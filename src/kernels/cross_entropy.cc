#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy.cc"
#include "hwy/foreach_target.h"
#include "kernels/math-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

float MaxOf(const float* x, int64_t count) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  VecF32 max0 = hn::Set(d, -std::numeric_limits<float>::infinity());
  VecF32 max1 = max0, max2 = max0, max3 = max0;
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    max0 = hn::Max(max0, hn::LoadU(d, x + i));
    max1 = hn::Max(max1, hn::LoadU(d, x + i + lanes));
    max2 = hn::Max(max2, hn::LoadU(d, x + i + 2 * lanes));
    max3 = hn::Max(max3, hn::LoadU(d, x + i + 3 * lanes));
  }
  float max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(max0, max1), hn::Max(max2, max3))));
  for (; i < count; ++i) max = std::max(max, x[i]);
  return max;
}

// The sum of e^(x - max), which `store` writes over x. f32 within 1024 elements (at most 16
// additions a lane with 16 lanes), double between, so that the error does not grow with the
// vocabulary.
template <bool store>
HWY_INLINE double SumExp(float* x, int64_t count, float max) {
  constexpr int64_t kSpan = 1024;
  const VecF32 shift = hn::Set(F32(), max);
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += kSpan) {
    float* span = x + begin;
    sum += SumLanes(std::min(kSpan, count - begin), [&](auto at) HAVERSACK_LANES {
      const VecF32 e = ExpBelowOverflow(hn::Sub(at.Load(span), shift));
      if constexpr (store) at.Store(e, span);
      return e;
    });
  }
  return sum;
}

// `gradient`: whether to overwrite the logits with their gradient; otherwise they are only read.
template <bool gradient>
HWY_INLINE void CrossEntropyRow(float* x, int64_t vocab, int32_t target, float scale, float* loss) {
  if (target < 0) {
    *loss = 0;
    if (gradient) std::fill_n(x, vocab, 0.0f);
    return;
  }
  const double target_logit = x[target];
  const float max = MaxOf(x, vocab);
  const double sum = SumExp<gradient>(x, vocab, max);
  *loss = static_cast<float>(std::log(sum) + (max - target_logit));
  if constexpr (gradient) {
    const double target_exp = x[target];
    const VecF32 factor = hn::Set(F32(), static_cast<float>(scale / sum));
    ForLanes(vocab, [&](auto at) HAVERSACK_LANES { at.Store(hn::Mul(at.Load(x), factor), x); });
    x[target] = static_cast<float>((target_exp / sum - 1.0) * scale);
  }
}

void CrossEntropyGradientRows(float* logits, int64_t stride, int64_t rows, int64_t vocab,
                              const int32_t* targets, float scale, float* losses) {
  for (int64_t r = 0; r < rows; ++r) {
    CrossEntropyRow<true>(logits + r * stride, vocab, targets[r], scale, losses + r);
  }
}

void CrossEntropyLossRows(const float* logits, int64_t stride, int64_t rows, int64_t vocab,
                          const int32_t* targets, float* losses) {
  for (int64_t r = 0; r < rows; ++r) {
    // Without a gradient nothing is written.
    float* row = const_cast<float*>(logits) + r * stride;
    CrossEntropyRow<false>(row, vocab, targets[r], 0.0f, losses + r);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(CrossEntropyGradientRows);
HWY_EXPORT(CrossEntropyLossRows);

namespace {

void CheckTargets(const int32_t* targets, int64_t rows, int64_t vocab) {
  for (int64_t r = 0; r < rows; ++r) {
    HAVERSACK_CHECK(targets[r] < vocab, "target {} of row {}, vocabulary of {}", targets[r], r,
                    vocab);
  }
}

}  // namespace

void CrossEntropyForwardBackward(float* logits, int64_t stride, int64_t rows, int64_t vocab,
                                 const int32_t* targets, float scale, float* losses) {
  CheckTargets(targets, rows, vocab);
  ParallelFor(rows, RowGrain(vocab), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(CrossEntropyGradientRows)
    (logits + begin * stride, stride, end - begin, vocab, targets + begin, scale, losses + begin);
  });
}

void CrossEntropyForward(const float* logits, int64_t stride, int64_t rows, int64_t vocab,
                         const int32_t* targets, float* losses) {
  CheckTargets(targets, rows, vocab);
  ParallelFor(rows, RowGrain(vocab), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(CrossEntropyLossRows)
    (logits + begin * stride, stride, end - begin, vocab, targets + begin, losses + begin);
  });
}

}  // namespace haversack
#endif
