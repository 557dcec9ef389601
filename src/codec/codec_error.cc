#include "codec/codec_error.h"

#include <algorithm>
#include <vector>

#include "base/threads.h"
#include "codec/format.h"
#include "hwy/aligned_allocator.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/codec_error.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

// error[0] += |x - y|^2, error[1] += |x|^2 over a row.
void AddRowErrors(const float* x, const float* y, int64_t cols, double* error) {
  error[0] += SumLanes(cols, [&](auto at) HAVERSACK_LANES {
    const VecF32 difference = hn::Sub(at.Load(x), at.Load(y));
    return hn::Mul(difference, difference);
  });
  error[1] += SumLanes(cols, [&](auto at) HAVERSACK_LANES {
    const VecF32 v = at.Load(x);
    return hn::Mul(v, v);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(AddRowErrors);

SquaredError MeasureError(const EncodedShape& shape, const float* x, int64_t stride,
                          const RandomKey& key) {
  constexpr int64_t kTile = 8;
  const RowBlocks blocks(shape.rows);
  std::vector<SquaredError> partial(static_cast<size_t>(blocks.count));
  ParallelTasks(blocks.count, [&](int64_t block, int /*thread*/) {
    const auto encoded =
        hwy::AllocateAligned<std::byte>(EncodedBytes(shape.codec, kTile, shape.cols));
    const auto decoded = hwy::AllocateAligned<float>(static_cast<size_t>(kTile * shape.cols));
    double sums[2] = {0, 0};
    for (int64_t begin = blocks.Begin(block); begin < blocks.End(block); begin += kTile) {
      EncodedShape tile = shape;
      tile.rows = std::min(kTile, blocks.End(block) - begin);
      const float* rows = x + begin * stride;
      const CodecFormat& format = *shape.codec.format;
      format.EncodeRows(tile, 0, tile.rows, rows, stride, {.key = key, .first_row = begin},
                        encoded.get());
      format.DecodeRows(tile, encoded.get(), 0, tile.rows, decoded.get(), shape.cols);
      for (int64_t r = 0; r < tile.rows; ++r) {
        HWY_DYNAMIC_DISPATCH(AddRowErrors)
        (rows + r * stride, decoded.get() + r * shape.cols, shape.cols, sums);
      }
    }
    partial[static_cast<size_t>(block)] = {.error = sums[0], .norm = sums[1]};
  });
  SquaredError total;
  for (const SquaredError& sum : partial) total += sum;
  return total;
}

}  // namespace haversack
#endif
