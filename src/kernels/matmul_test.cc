#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

float Widen(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

TEST(RoundToBF16, IsNearestWithTiesToEvenAndKeepsWhatIsNotFinite) {
  const std::vector<float> x = {1.0f,
                                std::bit_cast<float>(0x3f808000u),  // half way: to even, down
                                std::bit_cast<float>(0x3f818000u),  // half way: to even, up
                                std::bit_cast<float>(0x3f808001u),  // just above half way
                                -0.0f,
                                std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::denorm_min()};
  const std::vector<uint16_t> want = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x8000, 0x7f80, 0x0000};
  std::vector<uint16_t> got(x.size());
  RoundToBF16(x.data(), 7, 1, 7, got.data());
  EXPECT_EQ(got, want);
  const std::vector<float> nans(19, std::bit_cast<float>(0x7f800001u));
  std::vector<uint16_t> kept(19);
  RoundToBF16(nans.data(), 19, 1, 19, kept.data());
  for (const uint16_t half : kept) EXPECT_TRUE(std::isnan(Widen(half)));
}

// Against the definition on the rounded operands, which bf16 x bf16 products hold exactly.
TEST(Matmul, BF16EqualsTheProductOfTheRoundedOperands) {
  if (!CanComputeBF16()) GTEST_SKIP() << "this BLAS library has no bf16 product";
  const int64_t m = 9, n = 13, k = 37;
  const RandomStream random({.seed = 2});
  const Matmul matmul(ComputeType::kBF16);
  std::vector<std::byte> storage(matmul.Scratch(m, n, k) + 64);
  auto* scratch = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(storage.data()) + 63) &
                                               ~uintptr_t{63});
  for (const Transpose ta : {Transpose::kNo, Transpose::kYes}) {
    for (const Transpose tb : {Transpose::kNo, Transpose::kYes}) {
      const int64_t lda = (ta == Transpose::kYes ? m : k) + 3;
      const int64_t ldb = (tb == Transpose::kYes ? k : n) + 1;
      std::vector<float> a(48 * lda), b(48 * ldb), c(m * n, 0.5f);
      for (size_t i = 0; i < a.size(); ++i) a[i] = random.Normal(i);
      for (size_t i = 0; i < b.size(); ++i) b[i] = random.Normal(5000 + i);
      matmul(ta, tb, m, n, k, 1, a.data(), lda, b.data(), ldb, 1, c.data(), n, scratch);
      for (auto* values : {&a, &b}) {
        std::vector<uint16_t> half(values->size());
        RoundToBF16(values->data(), 0, 1, static_cast<int64_t>(values->size()), half.data());
        for (size_t i = 0; i < half.size(); ++i) (*values)[i] = Widen(half[i]);
      }
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double want = 0.5, size = 0.5;
          for (int64_t l = 0; l < k; ++l) {
            const double term =
                static_cast<double>(ta == Transpose::kYes ? a[l * lda + i] : a[i * lda + l]) *
                (tb == Transpose::kYes ? b[j * ldb + l] : b[l * ldb + j]);
            want += term;
            size += std::abs(term);
          }
          // f32 accumulation of k terms: k rounding errors of 2^-24 of the running sum at most.
          EXPECT_NEAR(c[i * n + j], want, static_cast<double>(k) * 0x1p-24 * size);
        }
      }
    }
  }
}

TEST(Matmul, F32NeedsNoScratch) { EXPECT_EQ(Matmul(ComputeType::kF32).Scratch(8, 8, 8), 0u); }

}  // namespace
}  // namespace haversack
