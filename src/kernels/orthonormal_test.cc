#include "kernels/orthonormal.h"

#include "kernels/gemm.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

constexpr RandomKey kKey = {.seed = 5, .purpose = RandomPurpose::kProjection};

// Largest entry of |a^T a - I| for the columns of a [rows, cols].
double Defect(const Floats& a, int64_t rows, int64_t cols) {
  double worst = 0;
  for (int64_t i = 0; i < cols; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += double{a[r * cols + i]} * a[r * cols + j];
      worst = std::max(worst, std::abs(sum - (i == j ? 1 : 0)));
    }
  }
  return worst;
}

// Largest part of column j of `b` that columns [0, j] of the orthonormal `q` do not span, relative
// to the column.
double OutsideSpan(const Floats& b, const Floats& q, int64_t rows, int64_t cols) {
  double worst = 0;
  for (int64_t j = 0; j < cols; ++j) {
    Doubles rest(rows);
    double norm = 0;
    for (int64_t r = 0; r < rows; ++r) {
      rest[r] = b[r * cols + j];
      norm += rest[r] * rest[r];
    }
    for (int64_t i = 0; i <= j; ++i) {
      double share = 0;
      for (int64_t r = 0; r < rows; ++r) share += rest[r] * q[r * cols + i];
      for (int64_t r = 0; r < rows; ++r) rest[r] -= share * q[r * cols + i];
    }
    double left = 0;
    for (const double x : rest) left += x * x;
    worst = std::max(worst, std::sqrt(left / norm));
  }
  return worst;
}

TEST(Orthonormal, ColumnsAreOrthonormalAndSpansGrowAsBefore) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 5}, {40, 33}, {300, 100}, {64, 64}}) {
    const Floats before = RandomFloats(rows * cols, 3);
    Floats q = before;
    Floats scratch(OrthonormaliseScratch(rows, cols));
    Orthonormalise(q.data(), rows, cols, kKey, scratch.data());
    // Dot products of `rows` f32 products.
    EXPECT_LT(Defect(q, rows, cols), 4 * kEps * std::sqrt(rows) + 4 * kEps);
    // A square Gaussian matrix has a condition number of some `cols`.
    EXPECT_LT(OutsideSpan(before, q, rows, cols), 1e-6 * static_cast<double>(cols));
  }
}

TEST(Orthonormal, HoldsForColumnsThatAllButCoincide) {
  constexpr int64_t kRows = 200, kCols = 50;
  const Floats direction = RandomFloats(kRows, 1), noise = RandomFloats(kRows * kCols, 2, 1e-3);
  Floats q(kRows * kCols);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kCols; ++c) q[r * kCols + c] = direction[r] + noise[r * kCols + c];
  }
  Floats scratch(OrthonormaliseScratch(kRows, kCols));
  Orthonormalise(q.data(), kRows, kCols, kKey, scratch.data());
  EXPECT_LT(Defect(q, kRows, kCols), 1e-6);
}

TEST(Orthonormal, DependentAndZeroColumnsAreReplaced) {
  constexpr int64_t kRows = 90, kCols = 70;
  Floats q = RandomFloats(kRows * kCols, 4);
  for (int64_t r = 0; r < kRows; ++r) {
    q[r * kCols + 3] = 0;
    q[r * kCols + 20] = q[r * kCols + 1];
    q[r * kCols + 65] = 2 * q[r * kCols + 2] - q[r * kCols + 5];
  }
  Floats scratch(OrthonormaliseScratch(kRows, kCols));
  Orthonormalise(q.data(), kRows, kCols, kKey, scratch.data());
  EXPECT_LT(Defect(q, kRows, kCols), 1e-6);
}

TEST(Orthonormal, TheInverseFactorMakesColumnsOrthonormal) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<int64_t, int64_t>>{{7, 1}, {100, 45}, {250, 100}}) {
    const Floats a = RandomFloats(rows * cols, 6);
    Floats t(cols * cols), scratch(rows * cols + 3 * cols * cols), q(rows * cols);
    InverseCholeskyFactor(a.data(), rows, cols, t.data(), scratch.data());
    for (int64_t i = 0; i < cols; ++i) {
      for (int64_t j = 0; j < i; ++j) EXPECT_EQ(t[i * cols + j], 0);
    }
    Gemm(Transpose::kNo, Transpose::kNo, rows, cols, cols, 1, a.data(), cols, t.data(), cols, 0,
         q.data(), cols);
    // The condition number of these matrices is below 10.
    EXPECT_LT(Defect(q, rows, cols), 10 * 8 * kEps);
  }
}

}  // namespace
}  // namespace haversack
