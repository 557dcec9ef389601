// Gemm through LibTorch's public operators, for wheels that keep their BLAS symbols to themselves.
// base/error.h stays out: LibTorch's include folder carries another version of fmt.
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <stdexcept>

#include "kernels/gemm.h"

namespace haversack {
namespace {

at::Tensor View(const float* data, int64_t rows, int64_t cols, int64_t stride) {
  return at::from_blob(const_cast<float*>(data), {rows, cols}, {stride, 1});
}

// op(data), where op(data) is [rows, cols].
at::Tensor Operand(const float* data, int64_t rows, int64_t cols, int64_t stride, Transpose op) {
  return op == Transpose::kYes ? View(data, cols, rows, stride).t()
                               : View(data, rows, cols, stride);
}

}  // namespace

void Gemm(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  const c10::InferenceMode no_autograd;
  at::Tensor out = View(c, m, n, ldc);
  at::addmm_out(out, out, Operand(a, m, k, lda, ta), Operand(b, k, n, ldb, tb), beta, alpha);
}

bool HasGemmBF16() { return false; }

void GemmBF16(Transpose, Transpose, int64_t, int64_t, int64_t, float, const uint16_t*, int64_t,
              const uint16_t*, int64_t, float, float*, int64_t) {
  throw std::logic_error("this backend has no bf16 product with f32 results");
}

}  // namespace haversack
