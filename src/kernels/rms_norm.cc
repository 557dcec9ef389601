#include "kernels/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "base/threads.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

void RmsNormRebuildRows(const float* x, const float* weight, const float* rstd, int64_t rows,
                        int64_t cols, float* y) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const VecF32 scale = hn::Set(F32(), rstd[r]);
    ForLanes(cols, [&](auto at) HAVERSACK_LANES {
      at.Prefetch(x + cols);
      at.Store(hn::Mul(hn::Mul(at.Load(x), scale), at.Load(weight)), y);
    });
  }
}

void RmsNormForwardRows(const float* x, const float* weight, float epsilon, int64_t rows,
                        int64_t cols, float* y, float* rstd) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const float squares = SumLanes(cols, [&](auto at) HAVERSACK_LANES {
      const VecF32 v = at.Load(x);
      return hn::Mul(v, v);
    });
    rstd[r] = 1.0f / std::sqrt(squares / static_cast<float>(cols) + epsilon);
    RmsNormRebuildRows(x, weight, rstd + r, 1, cols, y);
  }
}

// `dweight` is this block's own partial and is added to.
void RmsNormBackwardRows(const float* dy, const float* x, const float* weight, const float* rstd,
                         int64_t rows, int64_t cols, float* dx, bool accumulate_dx,
                         float* dweight) {
  const F32 d;
  for (int64_t r = 0; r < rows; ++r, dy += cols, x += cols, dx += cols) {
    const float dot = SumLanes(cols, [&](auto at) HAVERSACK_LANES {
      return hn::Mul(hn::Mul(at.Load(dy), at.Load(weight)), at.Load(x));
    });
    const VecF32 scale = hn::Set(d, rstd[r]);
    const VecF32 mean = hn::Set(d, dot * rstd[r] / static_cast<float>(cols));
    ForLanes(cols, [&](auto at) HAVERSACK_LANES {
      at.Prefetch(dy + cols);
      at.Prefetch(x + cols);
      const VecF32 g = at.Load(dy);
      const VecF32 h = hn::Mul(at.Load(x), scale);
      at.Store(hn::MulAdd(g, h, at.Load(dweight)), dweight);
      const VecF32 out = hn::Mul(scale, hn::NegMulAdd(h, mean, hn::Mul(g, at.Load(weight))));
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

HWY_EXPORT(RmsNormForwardRows);
HWY_EXPORT(RmsNormRebuildRows);
HWY_EXPORT(RmsNormBackwardRows);

void RmsNormForward(const float* x, const float* weight, float epsilon, int64_t rows, int64_t cols,
                    float* y, float* rstd) {
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormForwardRows)
    (x + begin * cols, weight, epsilon, end - begin, cols, y + begin * cols, rstd + begin);
  });
}

void RmsNormRebuild(const float* x, const float* weight, const float* rstd, int64_t rows,
                    int64_t cols, float* y) {
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormRebuildRows)
    (x + begin * cols, weight, rstd + begin, end - begin, cols, y + begin * cols);
  });
}

namespace {

// body(block, begin, end, partial) for each block of rows; dweight from the partials, zero at
// first.
template <typename Body>
void BackwardBlocks(int64_t rows, int64_t cols, float* dweight, bool accumulate_dweight,
                    std::byte* scratch, const Body& body) {
  const RowBlocks blocks(rows);
  const int64_t stride = PartialStride(cols);
  float* partials = reinterpret_cast<float*>(scratch);
  ParallelFor(blocks.count, RowGrain(blocks.size * cols), [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      float* partial = partials + block * stride;
      std::fill_n(partial, cols, 0.0f);
      body(block, blocks.Begin(block), blocks.End(block), partial);
    }
  });
  AddPartials(partials, blocks.count, stride, cols, dweight, accumulate_dweight);
}

}  // namespace

size_t RmsNormBackwardScratch(int64_t rows, int64_t cols) { return PartialBytes(rows, cols); }

void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* rstd,
                     int64_t rows, int64_t cols, float* dx, bool accumulate_dx, float* dweight,
                     bool accumulate_dweight, std::byte* scratch) {
  BackwardBlocks(rows, cols, dweight, accumulate_dweight, scratch,
                 [&](int64_t /*block*/, int64_t begin, int64_t end, float* partial) {
                   HWY_DYNAMIC_DISPATCH(RmsNormBackwardRows)
                   (dy + begin * cols, x + begin * cols, weight, rstd + begin, end - begin, cols,
                    dx + begin * cols, accumulate_dx, partial);
                 });
}

// The partials, then a row of x for each block.
size_t RmsNormBackwardFromRowsScratch(int64_t rows, int64_t cols) {
  return PartialBytes(rows, cols, /*sums=*/2);
}

void RmsNormBackwardFromRows(const float* dy, RowReader read_row, const float* weight,
                             const float* rstd, int64_t rows, int64_t cols, float* dx,
                             bool accumulate_dx, float* dweight, bool accumulate_dweight,
                             std::byte* scratch) {
  float* tiles = reinterpret_cast<float*>(scratch + PartialBytes(rows, cols));
  BackwardBlocks(rows, cols, dweight, accumulate_dweight, scratch,
                 [&](int64_t block, int64_t begin, int64_t end, float* partial) {
                   float* x = tiles + block * PartialStride(cols);
                   for (int64_t r = begin; r < end; ++r) {
                     read_row(r, x);
                     HWY_DYNAMIC_DISPATCH(RmsNormBackwardRows)
                     (dy + r * cols, x, weight, rstd + r, 1, cols, dx + r * cols, accumulate_dx,
                      partial);
                   }
                 });
}

}  // namespace haversack
#endif
