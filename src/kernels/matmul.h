// Matrix products at the run's compute type: f32, or bf16 operands with f32 accumulation and
// results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/gemm.h"

namespace haversack {

enum class ComputeType { kF32, kBF16 };

std::string_view ToText(ComputeType type);

// Whether this build of the BLAS library multiplies bf16 (at whatever speed).
bool CanComputeBF16();

// Gemm's product. In bf16 both operands are rounded to nearest into `scratch` first; what is stored
// stays f32, so weights, gradients and moments lose nothing from step to step.
class Matmul {
 public:
  explicit Matmul(ComputeType type) : type_(type) {}
  ComputeType type() const { return type_; }

  // Bytes of scratch for a product of these sizes, 64-byte aligned by the caller; 0 in f32.
  size_t Scratch(int64_t m, int64_t n, int64_t k) const;
  void operator()(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha,
                  const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                  int64_t ldc, std::byte* scratch) const;
  // The same by GemmByRows in f32.
  void ByRows(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha,
              const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
              int64_t ldc, std::byte* scratch) const;

 private:
  ComputeType type_;
};

// out[r * cols + c] = x[r * stride + c] rounded to the nearest bf16, ties to even; NaN stays NaN.
void RoundToBF16(const float* x, int64_t stride, int64_t rows, int64_t cols, uint16_t* out);

}  // namespace haversack
