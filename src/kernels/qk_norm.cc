#include "kernels/qk_norm.h"

#include <algorithm>
#include <cmath>

#include "base/threads.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/qk_norm.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

// One head. Element i is rotated with element i + half.
HWY_INLINE float QkNormHeadForward(const float* x, int64_t half, const float* weight, float epsilon,
                                   const float* cos, const float* sin, float* y) {
  const float squares = SumLanes(2 * half, [&](auto at) HAVERSACK_LANES {
    const VecF32 v = at.Load(x);
    return hn::Mul(v, v);
  });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(2 * half) + epsilon);
  const VecF32 scale = hn::Set(F32(), rstd);
  ForLanes(half, [&](auto at) HAVERSACK_LANES {
    const VecF32 a = hn::Mul(hn::Mul(at.Load(x), scale), at.Load(weight));
    const VecF32 b = hn::Mul(hn::Mul(at.Load(x + half), scale), at.Load(weight + half));
    const VecF32 c = at.Load(cos), s = at.Load(sin);
    at.Store(hn::NegMulAdd(b, s, hn::Mul(a, c)), y);
    at.Store(hn::MulAdd(a, s, hn::Mul(b, c)), y + half);
  });
  return rstd;
}

// One head: rotates dy back into dx, sums dweight, then applies the norm's derivative to dx in
// place.
HWY_INLINE void QkNormHeadBackward(const float* dy, const float* x, int64_t half,
                                   const float* weight, float rstd, const float* cos,
                                   const float* sin, float* dx, float* dweight) {
  const F32 d;
  const VecF32 scale = hn::Set(d, rstd);
  const float dot = SumLanes(half, [&](auto at) HAVERSACK_LANES {
    const VecF32 a = at.Load(dy), b = at.Load(dy + half);
    const VecF32 c = at.Load(cos), s = at.Load(sin);
    const VecF32 low = hn::MulAdd(b, s, hn::Mul(a, c));
    const VecF32 high = hn::NegMulAdd(a, s, hn::Mul(b, c));
    at.Store(low, dx);
    at.Store(high, dx + half);
    const VecF32 low_dw = hn::Mul(low, hn::Mul(at.Load(x), scale));
    const VecF32 high_dw = hn::Mul(high, hn::Mul(at.Load(x + half), scale));
    at.Store(hn::Add(at.Load(dweight), low_dw), dweight);
    at.Store(hn::Add(at.Load(dweight + half), high_dw), dweight + half);
    return hn::MulAdd(low_dw, at.Load(weight), hn::Mul(high_dw, at.Load(weight + half)));
  });
  const VecF32 mean = hn::Set(d, dot / static_cast<float>(2 * half));
  ForLanes(2 * half, [&](auto at) HAVERSACK_LANES {
    const VecF32 g = hn::Mul(at.Load(dx), at.Load(weight));
    const VecF32 h = hn::Mul(at.Load(x), scale);
    at.Store(hn::Mul(scale, hn::NegMulAdd(h, mean, g)), dx);
  });
}

void QkNormRopeForwardRows(const float* x, int64_t x_stride, int64_t rows, int64_t q_heads,
                           int64_t kv_heads, int64_t head_dim, const float* q_weight,
                           const float* k_weight, float epsilon, const int32_t* positions,
                           const float* cos, const float* sin, float* y, float* rstd) {
  const int64_t half = head_dim / 2;
  const int64_t heads = q_heads + kv_heads;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t table = positions[r] * half;
    for (int64_t head = 0; head < heads; ++head) {
      rstd[r * heads + head] = QkNormHeadForward(
          x + r * x_stride + head * head_dim, half, head < q_heads ? q_weight : k_weight, epsilon,
          cos + table, sin + table, y + (r * heads + head) * head_dim);
    }
  }
}

// `dweights`: this block's own partials, [2, head_dim], q then k.
void QkNormRopeBackwardRows(const float* dy, const float* x, int64_t x_stride, int64_t rows,
                            int64_t q_heads, int64_t kv_heads, int64_t head_dim,
                            const float* q_weight, const float* k_weight, const float* rstd,
                            const int32_t* positions, const float* cos, const float* sin, float* dx,
                            int64_t dx_stride, float* dweights) {
  const int64_t half = head_dim / 2;
  const int64_t heads = q_heads + kv_heads;
  std::fill_n(dweights, 2 * head_dim, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t table = positions[r] * half;
    for (int64_t head = 0; head < heads; ++head) {
      const bool is_q = head < q_heads;
      QkNormHeadBackward(dy + (r * heads + head) * head_dim, x + r * x_stride + head * head_dim,
                         half, is_q ? q_weight : k_weight, rstd[r * heads + head], cos + table,
                         sin + table, dx + r * dx_stride + head * head_dim,
                         is_q ? dweights : dweights + head_dim);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(QkNormRopeForwardRows);
HWY_EXPORT(QkNormRopeBackwardRows);

void QkNormRopeForward(const float* x, int64_t x_stride, int64_t rows, int64_t q_heads,
                       int64_t kv_heads, int64_t head_dim, const float* q_weight,
                       const float* k_weight, float epsilon, const int32_t* positions,
                       const float* cos, const float* sin, float* y, float* rstd) {
  const int64_t heads = q_heads + kv_heads;
  ParallelFor(rows, RowGrain(heads * head_dim), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(QkNormRopeForwardRows)
    (x + begin * x_stride, x_stride, end - begin, q_heads, kv_heads, head_dim, q_weight, k_weight,
     epsilon, positions + begin, cos, sin, y + begin * heads * head_dim, rstd + begin * heads);
  });
}

size_t QkNormRopeBackwardScratch(int64_t rows, int64_t head_dim) {
  return PartialBytes(rows, 2 * head_dim);
}

void QkNormRopeBackward(const float* dy, const float* x, int64_t x_stride, int64_t rows,
                        int64_t q_heads, int64_t kv_heads, int64_t head_dim, const float* q_weight,
                        const float* k_weight, const float* rstd, const int32_t* positions,
                        const float* cos, const float* sin, float* dx, int64_t dx_stride,
                        float* dq_weight, float* dk_weight, bool accumulate_dweight,
                        std::byte* scratch) {
  const RowBlocks blocks(rows);
  const int64_t heads = q_heads + kv_heads;
  const int64_t stride = PartialStride(2 * head_dim);
  float* partials = reinterpret_cast<float*>(scratch);
  const int64_t grain = RowGrain(blocks.size * heads * head_dim);
  ParallelFor(blocks.count, grain, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = blocks.Begin(block);
      HWY_DYNAMIC_DISPATCH(QkNormRopeBackwardRows)
      (dy + begin * heads * head_dim, x + begin * x_stride, x_stride, blocks.End(block) - begin,
       q_heads, kv_heads, head_dim, q_weight, k_weight, rstd + begin * heads, positions + begin,
       cos, sin, dx + begin * dx_stride, dx_stride, partials + block * stride);
    }
  });
  AddPartials(partials, blocks.count, stride, head_dim, dq_weight, accumulate_dweight);
  AddPartials(partials + head_dim, blocks.count, stride, head_dim, dk_weight, accumulate_dweight);
}

}  // namespace haversack
#endif
