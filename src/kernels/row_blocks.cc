#include "kernels/row_blocks.h"

#include <algorithm>

#include "base/threads.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_blocks.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

void AddPartialCols(const float* partials, int64_t blocks, int64_t stride, int64_t cols, float* dst,
                    bool accumulate) {
  ForLanes(cols, [&](auto at) HAVERSACK_LANES {
    VecF32 sum = at.Load(partials);
    for (int64_t block = 1; block < blocks; ++block) {
      sum = hn::Add(sum, at.Load(partials + block * stride));
    }
    at.Store(accumulate ? hn::Add(at.Load(dst), sum) : sum, dst);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(AddPartialCols);

void AddPartials(const float* partials, int64_t blocks, int64_t stride, int64_t cols, float* dst,
                 bool accumulate) {
  if (blocks == 0) {
    if (!accumulate) std::fill_n(dst, cols, 0.0f);
    return;
  }
  const int64_t lines = (cols + 15) / 16;
  ParallelFor(lines, RowGrain(16 * blocks), [&](int64_t begin, int64_t end) {
    const int64_t first = begin * 16;
    HWY_DYNAMIC_DISPATCH(AddPartialCols)
    (partials + first, blocks, stride, std::min(end * 16, cols) - first, dst + first, accumulate);
  });
}

}  // namespace haversack
#endif
