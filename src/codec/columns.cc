#include "codec/columns.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/columns.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

// maxima[c] = max over rows of |x[r][c]|, compared as integers: NaN stands above infinity.
void MaxRows(const float* x, int64_t stride, int64_t rows, int64_t cols, float* maxima) {
  const hn::RebindToSigned<F32> d;
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    ForLanes(cols, [&](auto at) HAVERSACK_LANES {
      const auto value = hn::BitCast(d, hn::Abs(at.Load(x)));
      const auto max = hn::Max(value, hn::BitCast(d, at.Load(maxima)));
      at.Store(hn::BitCast(F32(), max), maxima);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(MaxRows);

std::vector<float> ColumnMaxima(const float* x, int64_t stride, int64_t rows, int64_t cols) {
  std::vector<float> maxima(static_cast<size_t>(cols));
  const int64_t lines = (cols + 15) / 16;
  ParallelFor(lines, RowGrain(16 * rows), [&](int64_t begin, int64_t end) {
    const int64_t first = begin * 16;
    HWY_DYNAMIC_DISPATCH(MaxRows)
    (x + first, stride, rows, std::min(end * 16, cols) - first, maxima.data() + first);
  });
  return maxima;
}

std::vector<int32_t> LargestColumns(const float* x, int64_t stride, int64_t rows, int64_t cols,
                                    int count) {
  HAVERSACK_CHECK(count >= 0 && count <= cols, "{} of {} columns", count, cols);
  const std::vector<float> maxima = ColumnMaxima(x, stride, rows, cols);
  std::vector<int32_t> columns(maxima.size());
  std::iota(columns.begin(), columns.end(), 0);
  std::partial_sort(columns.begin(), columns.begin() + count, columns.end(),
                    [&](int32_t a, int32_t b) {
                      const auto of_a = std::bit_cast<int32_t>(maxima[a]);
                      const auto of_b = std::bit_cast<int32_t>(maxima[b]);
                      return of_a != of_b ? of_a > of_b : a < b;
                    });
  columns.resize(static_cast<size_t>(count));
  std::ranges::sort(columns);
  return columns;
}

}  // namespace haversack
#endif
