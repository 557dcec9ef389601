#include "kernels/projection.h"

#include "kernels/gemm.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

constexpr ProjectionSpec kGaussian = {.cols = 96, .rank = 24, .seed = 3, .index = 2};
constexpr ProjectionSpec kOrthonormal = {
    .cols = 96, .rank = 24, .orthonormal = true, .seed = 3, .index = 2};
constexpr ProjectionSpec kPrincipal = {
    .cols = 96, .rank = 28, .principal = 12, .orthonormal = true, .seed = 3, .index = 2};

struct Made {
  Floats basis, p;
};

// x [tokens, cols] whose singular values fall by 10% each.
Floats Activation(int64_t tokens, int64_t cols) {
  const Floats left = RandomFloats(tokens * cols, 7), right = RandomFloats(cols * cols, 8);
  Floats scaled = left, x(tokens * cols);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < cols; ++c) scaled[t * cols + c] *= std::pow(0.9, c);
  }
  Gemm(Transpose::kNo, Transpose::kNo, tokens, cols, cols, 1, scaled.data(), cols, right.data(),
       cols, 0, x.data(), cols);
  return x;
}

Made Make(const ProjectionSpec& spec, int64_t epoch, int iterations = 4) {
  static const Floats x = Activation(300, 96);
  Made made{Floats(spec.basis_floats()), Floats(spec.cols * spec.rank)};
  Floats scratch(std::max(spec.tile_scratch(), spec.refresh_scratch()));
  RefreshBasis(spec, epoch, x.data(), 300, iterations, true, made.basis.data(), scratch.data());
  MakeProjection(spec, epoch, made.basis.data(), made.p.data(), scratch.data());
  return made;
}

// Mean over epochs of P P^T v for the unit vector v, and of |P P^T v - v|^2.
struct Average {
  Doubles mean;
  double error = 0;
};
Average Reconstruct(const ProjectionSpec& spec, const Doubles& v, int epochs) {
  Average average{Doubles(spec.cols), 0};
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const Made made = Make(spec, epoch, 2);
    Doubles z(spec.rank);
    for (int64_t i = 0; i < spec.cols; ++i) {
      for (int64_t j = 0; j < spec.rank; ++j) z[j] += v[i] * made.p[i * spec.rank + j];
    }
    for (int64_t i = 0; i < spec.cols; ++i) {
      double back = 0;
      for (int64_t j = 0; j < spec.rank; ++j) back += z[j] * made.p[i * spec.rank + j];
      average.mean[i] += back / epochs;
      average.error += (back - v[i]) * (back - v[i]) / epochs;
    }
  }
  return average;
}

Doubles UnitVector(int64_t cols) {
  Doubles v = ToDouble(RandomFloats(cols, 12));
  double norm = 0;
  for (const double x : v) norm += x * x;
  for (double& x : v) x /= std::sqrt(norm);
  return v;
}

TEST(Projection, TilesAreRowsOfTheWhole) {
  ForEachTarget([] {
    for (const ProjectionSpec& spec : {kGaussian, kOrthonormal, kPrincipal,
                                       ProjectionSpec{.cols = 3000, .rank = 300, .seed = 1}}) {
      Made made{Floats(spec.basis_floats()), Floats(spec.cols * spec.rank)};
      if (spec.stored()) made = Make(spec, 1);
      Floats scratch(spec.tile_scratch()), tiles;
      MakeProjection(spec, 1, made.basis.data(), made.p.data(), scratch.data());
      int64_t next = 0;
      ForEachTile(spec, 1, made.basis.data(), scratch.data(),
                  [&](int64_t begin, int64_t rows, const float* p) {
                    EXPECT_EQ(begin, next);
                    next += rows;
                    tiles.insert(tiles.end(), p, p + rows * spec.rank);
                  });
      ExpectSameBits(tiles, made.p);
    }
  });
}

TEST(Projection, EpochsSeedsAndValuesDrawDifferentNumbers) {
  const Floats p = Make(kGaussian, 0).p;
  EXPECT_EQ(p, Make(kGaussian, 0).p);
  EXPECT_NE(p, Make(kGaussian, 1).p);
  ProjectionSpec other = kGaussian;
  other.seed = 4;
  EXPECT_NE(p, Make(other, 0).p);
  other = kGaussian;
  other.index = 3;
  EXPECT_NE(p, Make(other, 0).p);
}

TEST(Projection, ReconstructsWithoutBiasAndWithTheErrorOfItsKind) {
  constexpr int kEpochs = 400;
  SetNumThreads(1);  // the matrices are small
  const Doubles v = UnitVector(96);
  const double n = 96, r = 24;
  // One draw's error has a relative deviation of some sqrt(2 / r); five standard errors.
  const double sampling = 5 * std::sqrt(2 / r / kEpochs);
  const Average gaussian = Reconstruct(kGaussian, v, kEpochs);
  EXPECT_NEAR(gaussian.error, (n + 1) / r, sampling * (n + 1) / r);
  const Average orthonormal = Reconstruct(kOrthonormal, v, kEpochs);
  EXPECT_NEAR(orthonormal.error, n / r - 1, sampling * n / r);
  const Average principal = Reconstruct(kPrincipal, v, kEpochs);
  for (const Average* average : {&gaussian, &orthonormal, &principal}) {
    double off = 0;
    for (size_t i = 0; i < v.size(); ++i) off += std::pow(average->mean[i] - v[i], 2);
    // |mean - v|^2 is expected to be error / epochs.
    EXPECT_LT(off, 2 * average->error / kEpochs);
  }
  SetNumThreads(AvailableCores());
}

TEST(Projection, PrincipalPartIsTheLeadingRightSingularSpace) {
  const Made made = Make(kPrincipal, 0, 12);
  const int64_t n = kPrincipal.cols, r1 = kPrincipal.principal;
  const Floats x = Activation(300, n);
  // What the directions capture of |x|^2 is the most that any r1 could: the sum of the largest
  // eigenvalues of x^T x, which orthogonal iteration from the identity gives in double.
  Doubles covariance(n * n);
  for (int64_t t = 0; t < 300; ++t) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        covariance[i * n + j] += double{x[t * n + i]} * x[t * n + j];
      }
    }
  }
  const auto captured = [&](const Doubles& q, int64_t cols) {
    double sum = 0;
    for (int64_t k = 0; k < cols; ++k) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          sum += q[i * cols + k] * covariance[i * n + j] * q[j * cols + k];
        }
      }
    }
    return sum;
  };
  Doubles best(n * r1);
  for (int64_t i = 0; i < n; ++i) best[i * r1 + i % r1] = 1;
  for (int iteration = 0; iteration < 60; ++iteration) {
    Doubles next(n * r1);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t k = 0; k < r1; ++k)
          next[i * r1 + k] += covariance[i * n + j] * best[j * r1 + k];
      }
    }
    for (int64_t k = 0; k < r1; ++k) {
      for (int64_t other = 0; other <= k; ++other) {
        double dot = 0;
        for (int64_t i = 0; i < n; ++i) dot += next[i * r1 + k] * next[i * r1 + other];
        for (int64_t i = 0; i < n; ++i) {
          if (other == k) next[i * r1 + k] /= std::sqrt(dot);
          if (other < k) next[i * r1 + k] -= dot * next[i * r1 + other];
        }
      }
    }
    best = next;
  }
  Doubles q1(made.basis.begin(), made.basis.begin() + n * r1);
  EXPECT_GT(captured(q1, r1), 0.999 * captured(best, r1));
  EXPECT_LT(captured(q1, r1), 1.0001 * captured(best, r1));
  // Both parts are orthonormal to each other, and the random one is scaled.
  const double k = kPrincipal.random_scale();
  EXPECT_NEAR(k * k, 84.0 / 16, 1e-12);
  for (int64_t i = 0; i < kPrincipal.rank; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (int64_t row = 0; row < n; ++row) {
        dot += double{made.p[row * kPrincipal.rank + i]} * made.p[row * kPrincipal.rank + j];
      }
      const double scale = (i < r1 ? 1 : k) * (j < r1 ? 1 : k);
      EXPECT_NEAR(dot, i == j ? scale : 0, 2e-6 * scale);
    }
  }
}

TEST(Projection, ARunThatDivergesLeavesThePrincipalPartAlone) {
  Made made = Make(kPrincipal, 0);
  const Floats before = made.basis;
  Floats x = Activation(300, kPrincipal.cols);
  x[1000] = std::numeric_limits<float>::quiet_NaN();
  Floats scratch(kPrincipal.refresh_scratch());
  RefreshBasis(kPrincipal, 1, x.data(), 300, 2, false, made.basis.data(), scratch.data());
  const int64_t q1 = kPrincipal.cols * kPrincipal.principal;
  ExpectSameBits(Floats(made.basis.begin(), made.basis.begin() + q1),
                 Floats(before.begin(), before.begin() + q1));
}

TEST(Projection, FewerTokensThanDirectionsStillGiveABasis) {
  Made made = Make(kPrincipal, 0);
  const Floats x = Activation(5, kPrincipal.cols);
  Floats scratch(std::max(kPrincipal.tile_scratch(), kPrincipal.refresh_scratch()));
  RefreshBasis(kPrincipal, 1, x.data(), 5, 2, false, made.basis.data(), scratch.data());
  MakeProjection(kPrincipal, 1, made.basis.data(), made.p.data(), scratch.data());
  double trace = 0;
  for (const float value : made.p) trace += double{value} * value;
  EXPECT_NEAR(trace, kPrincipal.cols, 1e-4 * 96);  // r1 + k r2 = cols
}

TEST(Projection, ResultIsIndependentOfThreadCount) {
  ExpectThreadCountIndependent([] {
    const Made made = Make(kPrincipal, 2);
    Floats all = made.p;
    Append(all, made.basis);
    Append(all, Make(kGaussian, 2).p);
    return all;
  });
}

}  // namespace
}  // namespace haversack
