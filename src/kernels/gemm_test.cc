#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/random.h"

namespace haversack {
namespace {

TEST(Gemm, EqualsTheDefinitionForEveryTransposeAndBeta) {
  const int64_t m = 5, n = 7, k = 11;
  const RandomStream random({.seed = 1});
  for (const Transpose ta : {Transpose::kNo, Transpose::kYes}) {
    for (const Transpose tb : {Transpose::kNo, Transpose::kYes}) {
      for (const float beta : {0.0f, 1.0f}) {
        const int64_t lda = (ta == Transpose::kYes ? m : k) + 2;
        const int64_t ldb = (tb == Transpose::kYes ? k : n) + 1;
        std::vector<float> a(16 * lda), b(16 * ldb), c(m * (n + 3), 0.5f);
        for (size_t i = 0; i < a.size(); ++i) a[i] = random.Normal(i);
        for (size_t i = 0; i < b.size(); ++i) b[i] = random.Normal(1000 + i);
        if (beta == 0) c.assign(c.size(), std::numeric_limits<float>::quiet_NaN());
        Gemm(ta, tb, m, n, k, 2.0f, a.data(), lda, b.data(), ldb, beta, c.data(), n + 3);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double want = beta * 0.5;
            for (int64_t l = 0; l < k; ++l) {
              want += 2.0 * (ta == Transpose::kYes ? a[l * lda + i] : a[i * lda + l]) *
                      (tb == Transpose::kYes ? b[j * ldb + l] : b[l * ldb + j]);
            }
            EXPECT_NEAR(c[i * (n + 3) + j], want, 1e-4);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace haversack
