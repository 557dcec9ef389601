#include "kernels/gemm_rows.h"

#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

struct Shape {
  int64_t m, n, k;
};
// The first and the last are of those that Gemm sums differently on two threads.
constexpr Shape kShapes[] = {{64, 16, 2048}, {33, 7, 5}, {1, 1, 1}, {300, 40, 100}, {16, 16, 5000}};

TEST(GemmByRows, EqualsTheProductForEveryTranspose) {
  for (const Shape& s : kShapes) {
    const Floats a = RandomFloats(s.m * s.k, 1), b = RandomFloats(s.k * s.n, 2);
    const Floats c = RandomFloats(s.m * s.n, 3);
    for (const Transpose ta : {Transpose::kNo, Transpose::kYes}) {
      for (const Transpose tb : {Transpose::kNo, Transpose::kYes}) {
        const int64_t lda = ta == Transpose::kNo ? s.k : s.m;
        const int64_t ldb = tb == Transpose::kNo ? s.n : s.k;
        Floats expected = c, actual = c;
        Gemm(ta, tb, s.m, s.n, s.k, 0.5f, a.data(), lda, b.data(), ldb, 2, expected.data(), s.n);
        GemmByRows(ta, tb, s.m, s.n, s.k, 0.5f, a.data(), lda, b.data(), ldb, 2, actual.data(),
                   s.n);
        // Two orders of a sum of k products.
        ExpectClose(actual, ToDouble(expected), 4, 4 * std::sqrt(static_cast<double>(s.k)));
      }
    }
  }
}

TEST(GemmByRows, ResultIsIndependentOfThreadCount) {
  for (const Shape& s : kShapes) {
    const Floats a = RandomFloats(s.m * s.k, 1), b = RandomFloats(s.k * s.n, 2);
    ExpectThreadCountIndependent([&] {
      Floats c(s.m * s.n);
      GemmByRows(Transpose::kYes, Transpose::kNo, s.m, s.n, s.k, 1, a.data(), s.m, b.data(), s.n, 0,
                 c.data(), s.n);
      return c;
    });
  }
}

}  // namespace
}  // namespace haversack
