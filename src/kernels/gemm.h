// Row-major matrix products on raw f32 pointers, computed by the MKL inside LibTorch's wheel.
#pragma once

#include <cstdint>

namespace haversack {

enum class Transpose : bool { kNo, kYes };

// C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C. Leading dimensions in elements; op(A) =
// A[m,k] or, transposed, A[k,m]. beta = 0 never reads C. Uses all threads, or the calling one
// inside a parallel region. Sizes of zero are allowed.
void Gemm(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// The same of bf16 operands (the upper half of an f32's bits), accumulated in f32. Only where
// HasGemmBF16.
bool HasGemmBF16();
void GemmBF16(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha,
              const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, float beta, float* c,
              int64_t ldc);

}  // namespace haversack
