// Sums over rows (weight gradients) that do not depend on the number of threads: each block of a
// fixed number of rows sums into its own partial, and the partials are added in block order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace haversack {

// At most 32 blocks, of a size that depends on `rows` only.
struct RowBlocks {
  explicit RowBlocks(int64_t rows)
      : rows(rows), size(rows <= 8 * 32 ? 8 : (rows + 31) / 32), count((rows + size - 1) / size) {}

  int64_t Begin(int64_t block) const { return block * size; }
  int64_t End(int64_t block) const {
    return Begin(block) + size < rows ? Begin(block) + size : rows;
  }

  int64_t rows;
  int64_t size;   // rows of a block; the last may have fewer
  int64_t count;  // blocks
};

// Floats from one partial of `cols` to the next, whole cache lines.
inline int64_t PartialStride(int64_t cols) { return (cols + 15) / 16 * 16; }

// Bytes of the partials of `sums` sums of `cols` each.
inline size_t PartialBytes(int64_t rows, int64_t cols, int64_t sums = 1) {
  return static_cast<size_t>(RowBlocks(rows).count * PartialStride(cols) * sums) * sizeof(float);
}

// dst[c] = (accumulate ? dst[c] : 0) + sum over blocks, in their order, of partials[block * stride
// + c].
void AddPartials(const float* partials, int64_t blocks, int64_t stride, int64_t cols, float* dst,
                 bool accumulate);

// Rows a piece of ParallelFor should have at least, so that starting threads pays.
inline int64_t RowGrain(int64_t floats_per_row) {
  return floats_per_row >= 16384 ? 1 : 16384 / (floats_per_row > 0 ? floats_per_row : 1);
}

}  // namespace haversack
