#include "codec/fused.h"

#include <algorithm>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/rms_norm.h"
#include "kernels/row_blocks.h"
#include "kernels/swiglu.h"

namespace haversack {
namespace {

// body(begin, end) for tiles of rows that were just decoded into x, [rows, stride], and are in
// cache.
template <typename Body>
void ForDecodedTiles(std::span<const EncodedColumns> parts, int64_t rows, float* x, int64_t stride,
                     const Body& body) {
  const int64_t tile = RowGrain(stride);
  ParallelFor(rows, tile, [&](int64_t first, int64_t last) {
    for (int64_t begin = first; begin < last; begin += tile) {
      const int64_t end = std::min(begin + tile, last);
      for (const EncodedColumns& part : parts) {
        DecodeRows(part.shape, part.data, begin, end, x + begin * stride + part.first, stride);
      }
      body(begin, end);
    }
  });
}

void CheckCovers(std::span<const EncodedColumns> parts, int64_t rows, int64_t cols) {
  int64_t covered = 0;
  for (const EncodedColumns& part : parts) {
    HAVERSACK_CHECK(part.shape.rows == rows && part.first == covered,
                    "[{}, {}] at column {} after {} of {} rows", part.shape.rows, part.shape.cols,
                    part.first, covered, rows);
    covered += part.shape.cols;
  }
  HAVERSACK_CHECK(covered == cols, "{} of {} columns", covered, cols);
}

}  // namespace

size_t SwigluForwardEncodedScratch(int64_t cols) {
  return static_cast<size_t>(NumThreads() * RowGrain(2 * cols) * 2 * cols) * sizeof(float);
}

void SwigluForwardEncoded(std::span<const EncodedColumns> gate_up, int64_t rows, int64_t cols,
                          float* y, std::byte* scratch) {
  CheckCovers(gate_up, rows, 2 * cols);
  const int64_t tile = RowGrain(2 * cols);
  ParallelTasks((rows + tile - 1) / tile, [&](int64_t task, int thread) {
    const int64_t begin = task * tile, end = std::min(begin + tile, rows);
    float* decoded = reinterpret_cast<float*>(scratch) + thread * tile * 2 * cols;
    for (const EncodedColumns& part : gate_up) {
      DecodeRows(part.shape, part.data, begin, end, decoded + part.first, 2 * cols);
    }
    SwigluForward(decoded, end - begin, cols, y + begin * cols);
  });
}

void SwigluBackwardEncoded(const float* dy, std::span<const EncodedColumns> gate_up, int64_t rows,
                           int64_t cols, float* d_gate_up) {
  CheckCovers(gate_up, rows, 2 * cols);
  ForDecodedTiles(gate_up, rows, d_gate_up, 2 * cols, [&](int64_t begin, int64_t end) {
    float* tile = d_gate_up + begin * 2 * cols;
    SwigluBackward(dy + begin * cols, tile, end - begin, cols, tile);
  });
}

void RmsNormRebuildEncoded(const EncodedColumns& x, const float* weight, const float* rstd,
                           float* y) {
  const int64_t rows = x.shape.rows, cols = x.shape.cols;
  CheckCovers({&x, 1}, rows, cols);
  ForDecodedTiles({&x, 1}, rows, y, cols, [&](int64_t begin, int64_t end) {
    float* tile = y + begin * cols;
    RmsNormRebuild(tile, weight, rstd + begin, end - begin, cols, tile);
  });
}

void RmsNormBackwardEncoded(const float* dy, const EncodedColumns& x, const float* weight,
                            const float* rstd, float* dx, bool accumulate_dx, float* dweight,
                            bool accumulate_dweight, std::byte* scratch) {
  const int64_t rows = x.shape.rows, cols = x.shape.cols;
  CheckCovers({&x, 1}, rows, cols);
  RmsNormBackwardFromRows(
      dy, [&](int64_t row, float* out) { DecodeRows(x.shape, x.data, row, row + 1, out, cols); },
      weight, rstd, rows, cols, dx, accumulate_dx, dweight, accumulate_dweight, scratch);
}

}  // namespace haversack
