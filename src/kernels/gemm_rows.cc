#include "kernels/gemm_rows.h"

#include <algorithm>

#include "base/threads.h"

namespace haversack {

void GemmByRows(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha,
                const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                int64_t ldc) {
  // Enough blocks for many threads, each large enough that packing B again does not show.
  const int64_t rows = std::clamp<int64_t>(m / 8 / 16 * 16, 16, 256);
  const int64_t blocks = (m + rows - 1) / rows;
  // A second, empty task makes a parallel region of a single block, where the library is serial.
  ParallelTasks(std::max<int64_t>(2, blocks), [&](int64_t block, int) {
    if (block >= blocks) return;
    const int64_t begin = block * rows;
    const int64_t offset = ta == Transpose::kYes ? begin : begin * lda;
    Gemm(ta, tb, std::min(rows, m - begin), n, k, alpha, a + offset, lda, b, ldb, beta,
         c + begin * ldc, ldc);
  });
}

}  // namespace haversack
