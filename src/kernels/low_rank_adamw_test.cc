#include "kernels/low_rank_adamw.h"

#include "kernels/gemm.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

AdamWStep StepNumber(int t) {
  return {.lr = 3e-3,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .bias_correction1 = 1 - std::pow(0.9, t),
          .bias_correction2 = 1 - std::pow(0.95, t),
          .grad_scale = 0.5};
}

constexpr int64_t kRows = 70;

// A projection whose principal directions are all there are: P = I.
ProjectionSpec Identity(int64_t cols, bool full_moments) {
  return {.cols = cols,
          .rank = cols,
          .principal = cols,
          .orthonormal = true,
          .full_moments = full_moments};
}
Floats IdentityBasis(int64_t cols) {
  Floats basis(cols * cols);
  for (int64_t i = 0; i < cols; ++i) basis[i * cols + i] = 1;
  return basis;
}

TEST(LowRankAdamW, UnderTheIdentityItIsAdamW) {
  constexpr int64_t kCols = 33;
  for (const bool full : {false, true}) {
    ForEachTarget([&] {
      const ProjectionSpec spec = Identity(kCols, full);
      const Floats basis = IdentityBasis(kCols);
      Floats scratch(LowRankScratch(spec));
      const int64_t count = kRows * kCols;
      Floats weight = RandomFloats(count, 1), m(count), v(count);
      Floats expected = weight, em(count), ev(count);
      for (int t = 1; t <= 4; ++t) {
        Floats grad = RandomFloats(count, 10 + t);
        const Floats same = grad;
        LowRankAdamWUpdate({weight.data(), grad.data(), m.data(), v.data(), kRows},
                           {spec, 0, basis.data(), scratch.data()}, 1, StepNumber(t));
        AdamWUpdate(expected.data(), same.data(), em.data(), ev.data(), count, StepNumber(t));
        ExpectSameBits(m, em);
        ExpectSameBits(v, ev);
        if (full) ExpectSameBits(weight, expected);
        // The product rounds where AdamW's fused multiply-add does not.
        ExpectClose(weight, ToDouble(expected), 3 * t, 10 * 3e-3);
      }
    });
  }
}

TEST(LowRankAdamW, UpdatesAlongTheProjection) {
  // Several tiles: 2^18 / 300 rows each.
  for (const ProjectionSpec& spec :
       {ProjectionSpec{.cols = 1000, .rank = 300, .seed = 3, .index = 1},
        ProjectionSpec{.cols = 60, .rank = 15, .seed = 3, .index = 1}}) {
    const int64_t n = spec.cols, r = spec.rank;
    const AdamWStep s = StepNumber(3);
    Floats weight = RandomFloats(kRows * n, 1), m = RandomFloats(kRows * r, 2, 0.1);
    Floats v = RandomFloats(kRows * r, 3, 0.01, 0.1), grad = RandomFloats(kRows * r, 4);
    Floats scratch(LowRankScratch(spec)), p(n * r);
    MakeProjection(spec, 5, nullptr, p.data(), scratch.data());
    Doubles direction(kRows * r), expected(kRows * n);
    for (int64_t i = 0; i < kRows * r; ++i) {
      const double g = grad[i] * s.grad_scale;
      const double m1 = s.beta1 * m[i] + (1 - s.beta1) * g;
      const double v1 = s.beta2 * v[i] + (1 - s.beta2) * g * g;
      direction[i] = m1 / (std::sqrt(v1) / std::sqrt(s.bias_correction2) + s.epsilon);
    }
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t c = 0; c < n; ++c) {
        double update = 0;
        for (int64_t j = 0; j < r; ++j) update += direction[row * r + j] * p[c * r + j];
        expected[row * n + c] = weight[row * n + c] * (1 - s.lr * s.weight_decay) -
                                s.lr * 0.25 / s.bias_correction1 * update;
      }
    }
    LowRankAdamWUpdate({weight.data(), grad.data(), m.data(), v.data(), kRows},
                       {spec, 5, nullptr, scratch.data()}, 0.25, s);
    ExpectClose(weight, expected, 3, 3e-3 * static_cast<double>(r));
  }
}

TEST(LowRankAdamW, FullMomentsSeeTheExpandedGradient) {
  const ProjectionSpec spec = {
      .cols = 1000, .rank = 300, .full_moments = true, .seed = 3, .index = 1};
  const int64_t n = spec.cols, r = spec.rank;
  Floats weight = RandomFloats(kRows * n, 1), m(kRows * n), v(kRows * n);
  Floats expected = weight, em(kRows * n), ev(kRows * n);
  Floats grad = RandomFloats(kRows * r, 4), full(kRows * n), p(n * r);
  Floats scratch(LowRankScratch(spec));
  MakeProjection(spec, 2, nullptr, p.data(), scratch.data());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t c = 0; c < n; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < r; ++j) sum += double{grad[row * r + j]} * p[c * r + j];
      full[row * n + c] = static_cast<float>(sum);
    }
  }
  AdamWUpdate(expected.data(), full.data(), em.data(), ev.data(), kRows * n, StepNumber(1));
  LowRankAdamWUpdate({weight.data(), grad.data(), m.data(), v.data(), kRows},
                     {spec, 2, nullptr, scratch.data()}, 1, StepNumber(1));
  ExpectClose(m, ToDouble(em), 4, std::sqrt(static_cast<double>(r)));
}

TEST(LowRankAdamW, TheUpdatesRmsIsThatOfItsDirection) {
  const ProjectionSpec spec = {.cols = 768, .rank = 96, .seed = 3};
  Floats weight(kRows * spec.cols), m(kRows * spec.rank), v(kRows * spec.rank);
  Floats grad = RandomFloats(kRows * spec.rank, 4), scratch(LowRankScratch(spec));
  // After the first step of Adam every direction is +-1.
  AdamWStep step = StepNumber(1);
  step.weight_decay = 0;
  LowRankAdamWUpdate({weight.data(), grad.data(), m.data(), v.data(), kRows},
                     {spec, 0, nullptr, scratch.data()}, 0.5, step);
  double sum = 0;
  for (const float w : weight) sum += double{w} * w;
  const double rms = std::sqrt(sum / static_cast<double>(weight.size()));
  // |P N|^2 of a row has a relative deviation of sqrt(2 / (n + r)) about its mean at most.
  EXPECT_NEAR(rms, 0.5 * step.lr, 0.05 * step.lr * 0.5);
}

// First and second moments after a change of epoch of `rows` random ones, and the two P.
struct Carried {
  Floats m, v, m_before, v_before, old_p, new_p;
};
Carried Carry(const ProjectionSpec& spec, const Floats& x, int64_t tokens) {
  constexpr int64_t kMany = 300;
  Carried c;
  c.v_before = RandomFloats(kMany * spec.rank, 2);
  for (float& value : c.v_before) value = std::abs(value);
  c.v = c.v_before;
  Floats basis(spec.basis_floats()), base(RefreshSpace::Floats(spec) + 16);
  const RefreshSpace space = RefreshSpace::At(spec, base.data());
  c.old_p.resize(spec.cols * spec.rank);
  c.new_p = c.old_p;
  RefreshBasis(spec, 0, x.data(), tokens, 4, true, basis.data(), space.scratch);
  MakeProjection(spec, 0, basis.data(), c.old_p.data(), space.scratch);
  // A projected gradient.
  const Floats gradient = RandomFloats(kMany * spec.cols, 1);
  c.m_before.resize(kMany * spec.rank);
  Gemm(Transpose::kNo, Transpose::kNo, kMany, spec.rank, spec.cols, 1, gradient.data(), spec.cols,
       c.old_p.data(), spec.rank, 0, c.m_before.data(), spec.rank);
  c.m = c.m_before;
  if (spec.stored()) std::copy(c.old_p.begin(), c.old_p.end(), space.old_p);
  RefreshBasis(spec, 1, x.data(), tokens, 2, false, basis.data(), space.scratch);
  MakeProjection(spec, 1, basis.data(), c.new_p.data(), space.scratch);
  MakeTransfer(spec, 0, 1, basis.data(), space);
  ApplyTransfer(space, kMany, spec.rank, c.m.data(), c.v.data());
  return c;
}

double SquaredSum(const Floats& x) {
  double sum = 0;
  for (const float value : x) sum += double{value} * value;
  return sum;
}

TEST(MomentTransfer, AGaussianOneIsTheProductShrunk) {
  const ProjectionSpec spec = {.cols = 1000, .rank = 290, .seed = 9};
  const Carried c = Carry(spec, Floats(1000), 1);
  const int64_t n = spec.cols, r = spec.rank;
  const double shrink = 1 + (1000.0 + 1) / 290;
  for (const int64_t row : {0, 64, 299}) {
    Doubles back(n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < r; ++j)
        back[i] += double{c.m_before[row * r + j]} * c.old_p[i * r + j];
    }
    double mean = 0;
    for (int64_t j = 0; j < r; ++j) mean += c.v_before[row * r + j] / static_cast<double>(r);
    for (int64_t k = 0; k < r; ++k) {
      double expected = 0;
      for (int64_t i = 0; i < n; ++i) expected += back[i] * c.new_p[i * r + k];
      // M and the sums are of size sqrt(1000), with 1000 roundings each.
      ASSERT_NEAR(c.m[row * r + k], expected / shrink, 1e-3);
      ASSERT_NEAR(c.v[row * r + k], mean, 1e-5);
    }
  }
  // For M = G P, whose square is expected to be that of G, |M P_new^T P_old|^2 is larger by the
  // factor 1 + (n + 1) / r; it is M that is divided by it.
  EXPECT_NEAR(SquaredSum(c.m) / SquaredSum(c.m_before) * shrink, 1, 0.05);
}

TEST(MomentTransfer, UnderAnUnchangedPrincipalBasisNothingChanges) {
  constexpr int64_t kCols = 24;
  ProjectionSpec spec = Identity(kCols, false);
  Floats basis = IdentityBasis(kCols), base(RefreshSpace::Floats(spec) + 16);
  const RefreshSpace space = RefreshSpace::At(spec, base.data());
  std::copy(basis.begin(), basis.end(), space.old_p);
  Floats m = RandomFloats(80 * kCols, 1), v = RandomFloats(80 * kCols, 2, 0.1, 1);
  const Floats m_before = m, v_before = v;
  MakeTransfer(spec, 0, 1, basis.data(), space);
  ApplyTransfer(space, 80, kCols, m.data(), v.data());
  ExpectSameBits(m, m_before);
  ExpectClose(v, ToDouble(v_before), 4, 0);
}

TEST(MomentTransfer, APrincipalOneFollowsItsDefinition) {
  const ProjectionSpec spec = {
      .cols = 48, .rank = 24, .principal = 12, .orthonormal = true, .seed = 9};
  const Floats x = RandomFloats(200 * spec.cols, 6);
  const Carried c = Carry(spec, x, 200);
  const int64_t n = spec.cols, r = spec.rank;
  const auto scale = [&](int64_t j) { return j < spec.principal ? 1 : spec.random_scale(); };
  for (const int64_t row : {0, 65, 299}) {
    for (int64_t k = 0; k < r; ++k) {
      double m = 0, v = 0, covered = 0, mean = 0;
      for (int64_t j = 0; j < r; ++j) {
        double cosine = 0;
        for (int64_t i = 0; i < n; ++i) cosine += double{c.new_p[i * r + k]} * c.old_p[i * r + j];
        cosine /= scale(k) * scale(j);
        m += scale(k) * cosine / scale(j) * c.m_before[row * r + j];
        const double share = c.v_before[row * r + j] / (scale(j) * scale(j));
        v += cosine * cosine * share;
        covered += cosine * cosine;
        mean += share / static_cast<double>(r);
      }
      EXPECT_LT(covered, 1 + 1e-5);
      ASSERT_NEAR(c.m[row * r + k], m, 1e-3);
      ASSERT_NEAR(c.v[row * r + k], scale(k) * scale(k) * (v + (1 - covered) * mean), 1e-4);
    }
  }
}

}  // namespace
}  // namespace haversack
