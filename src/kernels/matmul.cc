#include "kernels/matmul.h"

#include "base/bytes.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/gemm_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

uint16_t RoundOne(float x) {
  uint32_t bits = 0;
  hwy::CopyBytes<4>(&x, &bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

void RoundRow(const float* x, int64_t cols, uint16_t* out) {
  const F32 df;
  const hn::RebindToUnsigned<F32> du;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<uint16_t, F32> d16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  int64_t c = 0;
  for (; c + lanes <= cols; c += lanes) {
    const auto value = hn::LoadU(df, x + c);
    const auto bits = hn::BitCast(du, value);
    const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(even, hn::Set(du, 0x7fffu))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
    const auto result = hn::IfThenElse(is_nan, quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, result)), d16, out + c);
  }
  for (; c < cols; ++c) out[c] = RoundOne(x[c]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(RoundRow);

namespace {

// The operand as it is stored: op(A) is [rows, cols].
struct Stored {
  int64_t rows, cols;
};

Stored StoredShape(Transpose transpose, int64_t rows, int64_t cols) {
  return transpose == Transpose::kYes ? Stored{cols, rows} : Stored{rows, cols};
}

}  // namespace

std::string_view ToText(ComputeType type) { return type == ComputeType::kF32 ? "f32" : "bf16"; }

bool CanComputeBF16() { return HasGemmBF16(); }

void RoundToBF16(const float* x, int64_t stride, int64_t rows, int64_t cols, uint16_t* out) {
  ParallelFor(rows, /*grain=*/8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      HWY_DYNAMIC_DISPATCH(RoundRow)(x + r * stride, cols, out + r * cols);
    }
  });
}

size_t Matmul::Scratch(int64_t m, int64_t n, int64_t k) const {
  if (type_ == ComputeType::kF32) return 0;
  return AlignUp(m * k * sizeof(uint16_t), 64) + AlignUp(k * n * sizeof(uint16_t), 64);
}

void Matmul::operator()(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha,
                        const float* a, int64_t lda, const float* b, int64_t ldb, float beta,
                        float* c, int64_t ldc, std::byte* scratch) const {
  if (type_ == ComputeType::kF32) {
    Gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  const Stored left = StoredShape(ta, m, k);
  const Stored right = StoredShape(tb, k, n);
  auto* a16 = reinterpret_cast<uint16_t*>(scratch);
  auto* b16 = reinterpret_cast<uint16_t*>(scratch + AlignUp(m * k * sizeof(uint16_t), 64));
  RoundToBF16(a, lda, left.rows, left.cols, a16);
  RoundToBF16(b, ldb, right.rows, right.cols, b16);
  GemmBF16(ta, tb, m, n, k, alpha, a16, left.cols, b16, right.cols, beta, c, ldc);
}

void Matmul::ByRows(Transpose ta, Transpose tb, int64_t m, int64_t n, int64_t k, float alpha,
                    const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                    int64_t ldc, std::byte* scratch) const {
  if (type_ == ComputeType::kF32) {
    GemmByRows(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  } else {
    (*this)(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, scratch);
  }
}

}  // namespace haversack
#endif  // HWY_ONCE
