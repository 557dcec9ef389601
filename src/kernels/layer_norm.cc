#include "kernels/layer_norm.h"

#include <algorithm>
#include <cmath>

#include "base/threads.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layer_norm.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

void LayerNormRebuildRows(const float* x, const float* weight, const float* bias, const float* mean,
                          const float* rstd, int64_t rows, int64_t cols, float* y) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const VecF32 center = hn::Set(F32(), mean[r]);
    const VecF32 scale = hn::Set(F32(), rstd[r]);
    ForLanes(cols, [&](auto at) HAVERSACK_LANES {
      at.Prefetch(x + cols);
      const VecF32 h = hn::Mul(hn::Sub(at.Load(x), center), scale);
      at.Store(hn::MulAdd(h, at.Load(weight), at.Load(bias)), y);
    });
  }
}

void LayerNormForwardRows(const float* x, const float* weight, const float* bias, float epsilon,
                          int64_t rows, int64_t cols, float* y, float* mean, float* rstd) {
  const float count = static_cast<float>(cols);
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    mean[r] = SumLanes(cols, [&](auto at) HAVERSACK_LANES { return at.Load(x); }) / count;
    const VecF32 center = hn::Set(F32(), mean[r]);
    const float squares = SumLanes(cols, [&](auto at) HAVERSACK_LANES {
      const VecF32 v = hn::Sub(at.Load(x), center);
      return hn::Mul(v, v);
    });
    rstd[r] = 1.0f / std::sqrt(squares / count + epsilon);
    LayerNormRebuildRows(x, weight, bias, mean + r, rstd + r, 1, cols, y);
  }
}

// `dweight` and `dbias` are this block's own partials.
void LayerNormBackwardRows(const float* dy, const float* x, const float* weight, const float* mean,
                           const float* rstd, int64_t rows, int64_t cols, float* dx,
                           bool accumulate_dx, float* dweight, float* dbias) {
  const F32 d;
  const float count = static_cast<float>(cols);
  std::fill_n(dweight, cols, 0.0f);
  std::fill_n(dbias, cols, 0.0f);
  for (int64_t r = 0; r < rows; ++r, dy += cols, x += cols, dx += cols) {
    const VecF32 center = hn::Set(d, mean[r]);
    const VecF32 scale = hn::Set(d, rstd[r]);
    const float sum = SumLanes(
        cols, [&](auto at) HAVERSACK_LANES { return hn::Mul(at.Load(dy), at.Load(weight)); });
    const float dot = SumLanes(cols, [&](auto at) HAVERSACK_LANES {
      return hn::Mul(hn::Mul(at.Load(dy), at.Load(weight)), hn::Sub(at.Load(x), center));
    });
    const VecF32 mean_g = hn::Set(d, sum / count);
    const VecF32 mean_gh = hn::Set(d, dot * rstd[r] / count);
    ForLanes(cols, [&](auto at) HAVERSACK_LANES {
      at.Prefetch(dy + cols);
      at.Prefetch(x + cols);
      const VecF32 g = at.Load(dy);
      const VecF32 h = hn::Mul(hn::Sub(at.Load(x), center), scale);
      at.Store(hn::MulAdd(g, h, at.Load(dweight)), dweight);
      at.Store(hn::Add(g, at.Load(dbias)), dbias);
      const VecF32 centered = hn::Sub(hn::Mul(g, at.Load(weight)), mean_g);
      const VecF32 out = hn::Mul(scale, hn::NegMulAdd(h, mean_gh, centered));
      at.Store(accumulate_dx ? hn::Add(at.Load(dx), out) : out, dx);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(LayerNormForwardRows);
HWY_EXPORT(LayerNormRebuildRows);
HWY_EXPORT(LayerNormBackwardRows);

void LayerNormForward(const float* x, const float* weight, const float* bias, float epsilon,
                      int64_t rows, int64_t cols, float* y, float* mean, float* rstd) {
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormForwardRows)
    (x + begin * cols, weight, bias, epsilon, end - begin, cols, y + begin * cols, mean + begin,
     rstd + begin);
  });
}

void LayerNormRebuild(const float* x, const float* weight, const float* bias, const float* mean,
                      const float* rstd, int64_t rows, int64_t cols, float* y) {
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormRebuildRows)
    (x + begin * cols, weight, bias, mean + begin, rstd + begin, end - begin, cols,
     y + begin * cols);
  });
}

size_t LayerNormBackwardScratch(int64_t rows, int64_t cols) { return PartialBytes(rows, cols, 2); }

void LayerNormBackward(const float* dy, const float* x, const float* weight, const float* mean,
                       const float* rstd, int64_t rows, int64_t cols, float* dx, bool accumulate_dx,
                       float* dweight, float* dbias, bool accumulate_dweight, std::byte* scratch) {
  const RowBlocks blocks(rows);
  const int64_t stride = PartialStride(cols);
  float* weight_partials = reinterpret_cast<float*>(scratch);
  float* bias_partials = weight_partials + blocks.count * stride;
  ParallelFor(blocks.count, RowGrain(blocks.size * cols), [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = blocks.Begin(block);
      HWY_DYNAMIC_DISPATCH(LayerNormBackwardRows)
      (dy + begin * cols, x + begin * cols, weight, mean + begin, rstd + begin,
       blocks.End(block) - begin, cols, dx + begin * cols, accumulate_dx,
       weight_partials + block * stride, bias_partials + block * stride);
    }
  });
  AddPartials(weight_partials, blocks.count, stride, cols, dweight, accumulate_dweight);
  AddPartials(bias_partials, blocks.count, stride, cols, dbias, accumulate_dweight);
}

}  // namespace haversack
#endif
