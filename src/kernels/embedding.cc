#include "kernels/embedding.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/embedding.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

void AddTableRows(const float* table, const int32_t* ids, const float* position_table,
                  const int32_t* positions, int64_t rows, int64_t cols, float* y) {
  for (int64_t r = 0; r < rows; ++r, y += cols) {
    const float* a = table + ids[r] * cols;
    const float* b = position_table + positions[r] * cols;
    ForLanes(cols, [&](auto at) HAVERSACK_LANES { at.Store(hn::Add(at.Load(a), at.Load(b)), y); });
  }
}

// Columns [begin, end) of every row.
void ScatterAddCols(const float* dy, const int32_t* ids, int64_t rows, int64_t cols, int64_t begin,
                    int64_t end, float* dtable) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* src = dy + r * cols + begin;
    float* dst = dtable + ids[r] * cols + begin;
    ForLanes(end - begin,
             [&](auto at) HAVERSACK_LANES { at.Store(hn::Add(at.Load(dst), at.Load(src)), dst); });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(AddTableRows);
HWY_EXPORT(ScatterAddCols);

namespace {

void CheckIds(const int32_t* ids, int64_t rows, int64_t limit) {
  for (int64_t r = 0; r < rows; ++r) {
    HAVERSACK_CHECK(ids[r] >= 0 && ids[r] < limit, "id {} of row {}, table of {}", ids[r], r,
                    limit);
  }
}

}  // namespace

void EmbeddingForward(const float* table, int64_t vocab, int64_t cols, const int32_t* ids,
                      int64_t rows, float* y) {
  CheckIds(ids, rows, vocab);
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(y + r * cols, table + ids[r] * cols, static_cast<size_t>(cols) * sizeof(float));
    }
  });
}

void EmbeddingForward(const float* table, int64_t vocab, int64_t cols, const int32_t* ids,
                      const float* position_table, int64_t max_positions, const int32_t* positions,
                      int64_t rows, float* y) {
  CheckIds(ids, rows, vocab);
  CheckIds(positions, rows, max_positions);
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddTableRows)
    (table, ids + begin, position_table, positions + begin, end - begin, cols, y + begin * cols);
  });
}

void EmbeddingBackward(const float* dy, const int32_t* ids, int64_t rows, int64_t cols,
                       float* dtable, int64_t vocab) {
  CheckIds(ids, rows, vocab);
  // A thread owns a range of columns, whole cache lines of them.
  const int64_t lines = (cols + 15) / 16;
  ParallelFor(lines, RowGrain(rows * 16), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ScatterAddCols)
    (dy, ids, rows, cols, begin * 16, std::min(end * 16, cols), dtable);
  });
}

}  // namespace haversack
#endif
