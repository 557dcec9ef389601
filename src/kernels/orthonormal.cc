#include "kernels/orthonormal.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/gemm_rows.h"
#include "kernels/normal.h"

namespace haversack {
namespace {

constexpr int64_t kPanel = 32;
// What is left of a column after the projection on those before it, as a share, below which it is
// taken for dependent: the projection's own rounding errors reach some 1e-6.
constexpr double kDependent = 1e-5;

// Columns [begin, begin + width) of `a` as doubles, one column after the other.
class Panel {
 public:
  Panel(float* a, int64_t rows, int64_t cols, int64_t begin, int64_t width, double* storage)
      : a_(a), rows_(rows), cols_(cols), begin_(begin), width_(width), x_(storage) {}

  void Load() {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t j = 0; j < width_; ++j) x_[j * rows_ + r] = a_[r * cols_ + begin_ + j];
    }
  }
  void Store() const {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t j = 0; j < width_; ++j) {
        a_[r * cols_ + begin_ + j] = static_cast<float>(x_[j * rows_ + r]);
      }
    }
  }
  double Norm(int64_t j) const { return std::sqrt(Dot(Column(j), Column(j))); }
  void Scale(int64_t j, double factor) {
    for (int64_t r = 0; r < rows_; ++r) Column(j)[r] *= factor;
  }
  void Fill(int64_t j, const RandomKey& key) {
    const RandomStream stream(key);
    for (int64_t r = 0; r < rows_; ++r) Column(j)[r] = stream.Normal((begin_ + j) * rows_ + r);
  }
  // Makes column j orthogonal to those of the panel before it.
  void Project(int64_t j) {
    for (int64_t i = 0; i < j; ++i) {
      const double share = Dot(Column(i), Column(j));
      for (int64_t r = 0; r < rows_; ++r) Column(j)[r] -= share * Column(i)[r];
    }
  }

 private:
  double* Column(int64_t j) const { return x_ + j * rows_; }
  // Four sums, in an order that never changes.
  double Dot(const double* x, const double* y) const {
    double sum[4] = {};
    for (int64_t r = 0; r + 4 <= rows_; r += 4) {
      for (int64_t k = 0; k < 4; ++k) sum[k] += x[r + k] * y[r + k];
    }
    for (int64_t r = rows_ / 4 * 4; r < rows_; ++r) sum[0] += x[r] * y[r];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  float* a_;
  int64_t rows_, cols_, begin_, width_;
  double* x_;
};

// Takes the share of columns [0, begin) out of columns [begin, begin + width).
void ProjectOnEarlier(float* a, int64_t rows, int64_t cols, int64_t begin, int64_t width,
                      float* shares) {
  if (begin == 0) return;
  GemmByRows(Transpose::kYes, Transpose::kNo, begin, width, rows, 1, a, cols, a + begin, cols, 0,
             shares, width);
  GemmByRows(Transpose::kNo, Transpose::kNo, rows, width, begin, -1, a, cols, shares, width, 1,
             a + begin, cols);
}

// Entry j of row i of the factor, from row j's and what is left of row i's entries before it.
double FactorEntry(const double* g, int64_t n, int64_t i, int64_t j) {
  double sum = g[i * n + j];
  for (int64_t k = 0; k < j; ++k) sum -= g[i * n + k] * g[j * n + k];
  return sum;
}

// Cholesky factorisation g = l l^T in place, the lower triangle; f64 throughout.
void Cholesky(double* g, int64_t n) {
  for (int64_t begin = 0; begin < n; begin += kPanel) {
    const int64_t end = std::min(n, begin + kPanel);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = begin; j < i; ++j) {
        g[i * n + j] = FactorEntry(g, n, i, j) / g[j * n + j];
      }
      const double pivot = FactorEntry(g, n, i, i);
      HAVERSACK_CHECK(pivot > 0, "pivot {} of {} is {}", i, n, pivot);
      g[i * n + i] = std::sqrt(pivot);
    }
    ParallelFor(n - end, /*grain=*/32, [&](int64_t first, int64_t last) {
      for (int64_t i = end + first; i < end + last; ++i) {
        for (int64_t j = begin; j < end; ++j) {
          g[i * n + j] = FactorEntry(g, n, i, j) / g[j * n + j];
        }
      }
    });
  }
}

// t = (l^T)^-1, upper triangular, by forward substitution on l: column i of l^-1 is row i of t.
void InvertTransposed(const double* l, int64_t n, float* t) {
  ParallelFor(n, /*grain=*/8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = t + i * n;
      std::fill(row, row + i, 0.0f);
      for (int64_t j = i; j < n; ++j) {
        double sum = i == j ? 1 : 0;
        for (int64_t k = i; k < j; ++k) sum -= l[j * n + k] * row[k];
        row[j] = static_cast<float>(sum / l[j * n + j]);
      }
    }
  });
}

}  // namespace

int64_t OrthonormaliseScratch(int64_t rows, int64_t cols) {
  return 2 * rows * std::min(kPanel, cols) + cols * std::min(kPanel, cols);
}

void Orthonormalise(float* a, int64_t rows, int64_t cols, const RandomKey& key, float* scratch) {
  HAVERSACK_CHECK(rows >= cols, "{} orthonormal columns of {} rows", cols, rows);
  auto* storage = reinterpret_cast<double*>(scratch);
  float* shares = scratch + 2 * rows * std::min(kPanel, cols);
  double before[kPanel];
  for (int64_t begin = 0; begin < cols; begin += kPanel) {
    const int64_t width = std::min(kPanel, cols - begin);
    Panel panel(a, rows, cols, begin, width, storage);
    panel.Load();
    for (int64_t j = 0; j < width; ++j) before[j] = panel.Norm(j);
    // Two passes make an independent column orthonormal; each replacement needs two more.
    RandomKey fresh = key;
    for (int pass = 0; pass < 2;) {
      ProjectOnEarlier(a, rows, cols, begin, width, shares);
      panel.Load();
      ++pass;
      for (int64_t j = 0; j < width; ++j) {
        panel.Project(j);
        if (!(panel.Norm(j) > kDependent * before[j])) {
          fresh.layer ^= 0x80000000u;
          ++fresh.seed;
          panel.Fill(j, fresh);
          panel.Project(j);
          before[j] = panel.Norm(j);
          pass = 0;
        }
        panel.Scale(j, 1 / panel.Norm(j));
      }
      for (int64_t j = 0; j < width; ++j) before[j] = 1;
      panel.Store();
    }
  }
}

void InverseCholeskyFactor(const float* a, int64_t rows, int64_t cols, float* t, float* scratch) {
  float* q = scratch;
  float* gram = q + rows * cols;
  auto* factor = reinterpret_cast<double*>(scratch + rows * cols + cols * cols);
  for (int round = 0; round < 2; ++round) {
    const float* x = a;
    if (round > 0) {
      GemmByRows(Transpose::kNo, Transpose::kNo, rows, cols, cols, 1, a, cols, t, cols, 0, q, cols);
      x = q;
    }
    GemmByRows(Transpose::kYes, Transpose::kNo, cols, cols, rows, 1, x, cols, x, cols, 0, gram,
               cols);
    for (int64_t i = 0; i < cols * cols; ++i) factor[i] = gram[i];
    Cholesky(factor, cols);
    if (round == 0) {
      InvertTransposed(factor, cols, t);
      continue;
    }
    // t <- t r^-1, through q.
    InvertTransposed(factor, cols, gram);
    std::memcpy(q, t, static_cast<size_t>(cols * cols) * sizeof(float));
    GemmByRows(Transpose::kNo, Transpose::kNo, cols, cols, cols, 1, q, cols, gram, cols, 0, t,
               cols);
  }
}

}  // namespace haversack
