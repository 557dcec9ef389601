// Matrix products of the shapes at which the BLAS library divides the inner dimension among
// threads.
#pragma once

#include <cstdint>

#include "kernels/gemm.h"

namespace haversack {

// Gemm's product, formed by blocks of rows of C whose size depends on m only, each by one thread:
// the same bits for any number of threads. For small C and a long inner dimension, as in products
// with a projection, where Gemm itself sums in an order that follows the threads.
void GemmByRows(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha,
                const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                int64_t ldc);

}  // namespace haversack
