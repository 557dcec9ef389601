#include "kernels/rope.h"

#include "base/threads.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

// `sign` 1 rotates forward, -1 back.
void RopeRows(float* x, int64_t stride, int64_t rows, int64_t heads, int64_t head_dim,
              const int32_t* positions, const float* cos, const float* sin, float sign) {
  const int64_t half = head_dim / 2;
  const VecF32 direction = hn::Set(F32(), sign);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row_cos = cos + positions[r] * half;
    const float* row_sin = sin + positions[r] * half;
    // Heads innermost, so that a pair of table vectors serves all of them.
    ForLanes(half, [&](auto at) HAVERSACK_LANES {
      const VecF32 c = at.Load(row_cos), s = hn::Mul(at.Load(row_sin), direction);
      for (int64_t head = 0; head < heads; ++head) {
        float* low = x + r * stride + head * head_dim;
        float* high = low + half;
        const VecF32 a = at.Load(low), b = at.Load(high);
        at.Store(hn::NegMulAdd(b, s, hn::Mul(a, c)), low);
        at.Store(hn::MulAdd(a, s, hn::Mul(b, c)), high);
      }
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(RopeRows);

namespace {

void Rotate(float* x, int64_t stride, int64_t rows, int64_t heads, int64_t head_dim,
            const int32_t* positions, const float* cos, const float* sin, float sign) {
  ParallelFor(rows, RowGrain(heads * head_dim), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RopeRows)
    (x + begin * stride, stride, end - begin, heads, head_dim, positions + begin, cos, sin, sign);
  });
}

}  // namespace

void RopeForward(float* x, int64_t stride, int64_t rows, int64_t heads, int64_t head_dim,
                 const int32_t* positions, const float* cos, const float* sin) {
  Rotate(x, stride, rows, heads, head_dim, positions, cos, sin, 1.0f);
}

void RopeBackward(float* x, int64_t stride, int64_t rows, int64_t heads, int64_t head_dim,
                  const int32_t* positions, const float* cos, const float* sin) {
  Rotate(x, stride, rows, heads, head_dim, positions, cos, sin, -1.0f);
}

}  // namespace haversack
#endif
