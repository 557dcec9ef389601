#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/flat.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

void AddSpan(const float* a, const float* b, int64_t count, float* out) {
  ForLanes(count, [&](auto at) HAVERSACK_LANES { at.Store(hn::Add(at.Load(a), at.Load(b)), out); });
}

void ScaleSpan(float* x, int64_t count, float factor) {
  const VecF32 scale = hn::Set(F32(), factor);
  ForLanes(count, [&](auto at) HAVERSACK_LANES { at.Store(hn::Mul(at.Load(x), scale), x); });
}

void AddRowsSpan(const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
                 int64_t dst_stride) {
  for (int64_t r = 0; r < rows; ++r)
    AddSpan(dst + r * dst_stride, src + r * src_stride, cols, dst + r * dst_stride);
}

// sum[c] = sum over rows of x[r][c].
void SumRows(const float* x, int64_t stride, int64_t rows, int64_t cols, float* sum) {
  std::memcpy(sum, x, static_cast<size_t>(cols) * sizeof(float));
  for (int64_t r = 1; r < rows; ++r) AddSpan(sum, x + r * stride, cols, sum);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(AddSpan);
HWY_EXPORT(ScaleSpan);
HWY_EXPORT(AddRowsSpan);
HWY_EXPORT(SumRows);

void Add(const float* a, const float* b, int64_t count, float* out) {
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddSpan)(a + begin, b + begin, end - begin, out + begin);
  });
}

void AddInto(float* dst, const float* src, int64_t count) { Add(dst, src, count, dst); }

void Scale(float* x, int64_t count, float factor) {
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ScaleSpan)(x + begin, end - begin, factor);
  });
}

void Fill(float* x, int64_t count, float value) {
  // memset writes whole lines without reading them first.
  const bool zero = value == 0 && !std::signbit(value);
  ParallelFlat(count, [&](int64_t begin, int64_t end) {
    if (zero) {
      std::memset(x + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    } else {
      std::fill(x + begin, x + end, value);
    }
  });
}

void CopyRows(const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
              int64_t dst_stride) {
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(dst + r * dst_stride, src + r * src_stride,
                  static_cast<size_t>(cols) * sizeof(float));
    }
  });
}

void AddRows(const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
             int64_t dst_stride) {
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddRowsSpan)
    (src + begin * src_stride, src_stride, end - begin, cols, dst + begin * dst_stride, dst_stride);
  });
}

void AddBias(float* y, int64_t rows, int64_t cols, const float* bias) {
  AddRows(bias, 0, rows, cols, y, cols);
}

size_t BiasBackwardScratch(int64_t rows, int64_t cols) { return PartialBytes(rows, cols); }

void BiasBackward(const float* dy, int64_t rows, int64_t cols, int64_t dy_stride, float* dbias,
                  bool accumulate_dbias, std::byte* scratch) {
  const RowBlocks blocks(rows);
  const int64_t stride = PartialStride(cols);
  float* partials = reinterpret_cast<float*>(scratch);
  ParallelFor(blocks.count, RowGrain(blocks.size * cols), [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = blocks.Begin(block);
      HWY_DYNAMIC_DISPATCH(SumRows)
      (dy + begin * dy_stride, dy_stride, blocks.End(block) - begin, cols,
       partials + block * stride);
    }
  });
  AddPartials(partials, blocks.count, stride, cols, dbias, accumulate_dbias);
}

}  // namespace haversack
#endif
