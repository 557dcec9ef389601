// Root mean square normalisation over the last dimension (Zhang and Sennrich, arXiv 1910.07467).
//
//   RmsNormForward(x, weight, 1e-5f, rows, cols, y, rstd);
//   ...
//   RmsNormBackward(dy, x, weight, rstd, rows, cols, dx, false, dweight, true, scratch);
//
// x, y, dx, dy: [rows, cols] contiguous; weight, dweight: [cols]; rstd: [rows], 1 / sqrt(mean(x^2)
// + epsilon). Results are bit-identical for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/threads.h"

namespace haversack {

// y = (x * rstd) * weight, in the order of operations of transformers. y may be x.
void RmsNormForward(const float* x, const float* weight, float epsilon, int64_t rows, int64_t cols,
                    float* y, float* rstd);

// y from x and the stored rstd, bit-identical to the y of RmsNormForward. y may be x.
void RmsNormRebuild(const float* x, const float* weight, const float* rstd, int64_t rows,
                    int64_t cols, float* y);

// Bytes of scratch for RmsNormBackward; 64-byte aligned by the caller.
size_t RmsNormBackwardScratch(int64_t rows, int64_t cols);

// With h = x * rstd: dx = rstd * (dy * weight - h * mean(dy * weight * h)), dweight = sum over rows
// of dy * h; each overwritten or added to. dx may be dy.
void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* rstd,
                     int64_t rows, int64_t cols, float* dx, bool accumulate_dx, float* dweight,
                     bool accumulate_dweight, std::byte* scratch);

// The same, bit for bit, where x is not in memory: read_row(r, out) writes its row r, [cols], to
// out. Rows are asked for on several threads, each once.
using RowReader = internal::FunctionRef<void(int64_t row, float* out)>;
size_t RmsNormBackwardFromRowsScratch(int64_t rows, int64_t cols);
void RmsNormBackwardFromRows(const float* dy, RowReader read_row, const float* weight,
                             const float* rstd, int64_t rows, int64_t cols, float* dx,
                             bool accumulate_dx, float* dweight, bool accumulate_dweight,
                             std::byte* scratch);

}  // namespace haversack
