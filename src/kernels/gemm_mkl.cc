// Gemm through the BLAS symbol that the wheel's libtorch_cpu exports.
#include <limits>

#include "base/error.h"
#include "kernels/gemm.h"

extern "C" {
void SGEMM(const char* transa, const char* transb, const int* m, const int* n, const int* k,
           const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
           const float* beta, float* c, const int* ldc);
// Weak: not every build of the wheel exports it.
__attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int transa, int transb, int m, int n,
                                                  int k, float alpha, const uint16_t* a, int lda,
                                                  const uint16_t* b, int ldb, float beta, float* c,
                                                  int ldc);
}

namespace haversack {
namespace {

int ToBlasInt(int64_t value) {
  HAVERSACK_CHECK(value >= 0 && value <= std::numeric_limits<int>::max(), "BLAS size {}", value);
  return static_cast<int>(value);
}

}  // namespace

void Gemm(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  // BLAS is column-major: a row-major C = A B is C^T = B^T A^T there.
  const char trans_a = ta == Transpose::kYes ? 'T' : 'N';
  const char trans_b = tb == Transpose::kYes ? 'T' : 'N';
  const int im = ToBlasInt(m), in = ToBlasInt(n), ik = ToBlasInt(k);
  const int ilda = ToBlasInt(lda), ildb = ToBlasInt(ldb), ildc = ToBlasInt(ldc);
  SGEMM(&trans_b, &trans_a, &in, &im, &ik, &alpha, b, &ildb, a, &ilda, &beta, c, &ildc);
}

bool HasGemmBF16() { return cblas_gemm_bf16bf16f32 != nullptr; }

void GemmBF16(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha,
              const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, float beta, float* c,
              int64_t ldc) {
  if (m == 0 || n == 0) return;
  constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;  // CBLAS's numbers
  cblas_gemm_bf16bf16f32(kRowMajor, ta == Transpose::kYes ? kTranspose : kNoTranspose,
                         tb == Transpose::kYes ? kTranspose : kNoTranspose, ToBlasInt(m),
                         ToBlasInt(n), ToBlasInt(k), alpha, a, ToBlasInt(lda), b, ToBlasInt(ldb),
                         beta, c, ToBlasInt(ldc));
}

}  // namespace haversack
