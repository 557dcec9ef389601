#include "kernels/attention.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/threads.h"

namespace haversack {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Scratch {
  explicit Scratch(size_t bytes)
      : data(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64))),
        size(bytes) {
    std::memset(data.get(), 0xff, bytes + 64);  // NaN, and a guard behind the end
  }
  bool GuardIntact() const {
    return std::all_of(data.get() + size, data.get() + size + 64,
                       [](std::byte b) { return b == std::byte{0xff}; });
  }
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data;
  size_t size;
};

// q, k and v as column ranges of one packed buffer, as a model has them.
struct Problem {
  AttentionShape shape;
  std::vector<int32_t> boundaries;
  std::vector<float> qkv, d_out;

  int64_t tokens() const { return boundaries.back(); }
  int64_t k_at() const { return shape.q_heads * shape.head_dim; }
  int64_t v_at() const { return k_at() + shape.kv_heads * shape.head_dim; }
  int64_t longest() const {
    int64_t longest = 0;
    for (size_t i = 1; i < boundaries.size(); ++i) {
      longest = std::max<int64_t>(longest, boundaries[i] - boundaries[i - 1]);
    }
    return longest;
  }
};

Problem MakeProblem(int64_t q_heads, int64_t kv_heads, int64_t head_dim,
                    std::vector<int32_t> boundaries, float magnitude = 1) {
  Problem p;
  const int64_t width = (q_heads + 2 * kv_heads) * head_dim;
  p.shape = {.q_heads = q_heads,
             .kv_heads = kv_heads,
             .head_dim = head_dim,
             .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
             .q_stride = width,
             .k_stride = width,
             .v_stride = width,
             .out_stride = q_heads * head_dim + 3};
  p.boundaries = std::move(boundaries);
  const RandomStream random({.seed = 7, .layer = static_cast<uint32_t>(head_dim)});
  p.qkv.resize(p.tokens() * width);
  for (size_t i = 0; i < p.qkv.size(); ++i) {
    p.qkv[i] = random.Normal(i);
    if (static_cast<int64_t>(i) % width < p.k_at()) p.qkv[i] *= magnitude;
  }
  p.d_out.resize(p.tokens() * p.shape.out_stride);
  for (size_t i = 0; i < p.d_out.size(); ++i) p.d_out[i] = random.Normal(1 << 24 | i);
  return p;
}

struct Result {
  std::vector<float> out, lse, d_qkv;
};

Result RunKernels(const Problem& p) {
  Result r;
  r.out.assign(p.tokens() * p.shape.out_stride, kNaN);
  r.lse.assign(p.tokens() * p.shape.q_heads, kNaN);
  r.d_qkv.assign(p.qkv.size(), kNaN);
  const float *q = p.qkv.data(), *k = q + p.k_at(), *v = q + p.v_at();
  {
    const Scratch scratch(AttentionForwardScratch(p.shape, p.longest(), NumThreads()));
    AttentionForward(p.shape, p.boundaries, q, k, v, r.out.data(), r.lse.data(),
                     scratch.data.get());
    EXPECT_TRUE(scratch.GuardIntact());
  }
  const Scratch scratch(AttentionBackwardScratch(p.shape, p.tokens(), p.longest(), NumThreads()));
  float* d_q = r.d_qkv.data();
  AttentionBackward(p.shape, p.boundaries, q, k, v, r.out.data(), r.lse.data(), p.d_out.data(), d_q,
                    d_q + p.k_at(), d_q + p.v_at(), scratch.data.get());
  EXPECT_TRUE(scratch.GuardIntact());
  return r;
}

struct Reference {
  std::vector<double> out, lse, d_qkv;
};

// The definition, row by row in double. dS = P (dP - sum P dP), dQ = scale dS K, dK = scale dS^T Q,
// dV = P^T dOut.
Reference RunReference(const Problem& p) {
  const AttentionShape& s = p.shape;
  Reference r;
  r.out.assign(p.tokens() * s.out_stride, 0);
  r.lse.assign(p.tokens() * s.q_heads, 0);
  r.d_qkv.assign(p.qkv.size(), 0);
  const int64_t dim = s.head_dim, width = s.q_stride;
  for (size_t segment = 0; segment + 1 < p.boundaries.size(); ++segment) {
    for (int64_t t = p.boundaries[segment]; t < p.boundaries[segment + 1]; ++t) {
      for (int64_t h = 0; h < s.q_heads; ++h) {
        const int64_t first = p.boundaries[segment], count = t - first + 1;
        const int64_t q_at = t * width + h * dim, o_at = t * s.out_stride + h * dim;
        const auto k_at = [&](int64_t i) {
          return (first + i) * width + p.k_at() + h / (s.q_heads / s.kv_heads) * dim;
        };
        const int64_t to_v = s.kv_heads * dim;
        std::vector<double> score(count, 0.0), d_prob(count, 0.0);
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t c = 0; c < dim; ++c) {
            score[i] += double{s.scale} * p.qkv[q_at + c] * p.qkv[k_at(i) + c];
            d_prob[i] += double{p.d_out[o_at + c]} * p.qkv[k_at(i) + to_v + c];
          }
        }
        const double maximum = *std::max_element(score.begin(), score.end());
        double sum = 0, delta = 0;
        for (const double x : score) sum += std::exp(x - maximum);
        r.lse[t * s.q_heads + h] = maximum + std::log(sum);
        for (int64_t i = 0; i < count; ++i) {
          score[i] = std::exp(score[i] - maximum) / sum;
          delta += score[i] * d_prob[i];
        }
        for (int64_t i = 0; i < count; ++i) {
          const double d_score = score[i] * (d_prob[i] - delta) * s.scale;
          for (int64_t c = 0; c < dim; ++c) {
            r.out[o_at + c] += score[i] * p.qkv[k_at(i) + to_v + c];
            r.d_qkv[q_at + c] += d_score * p.qkv[k_at(i) + c];
            r.d_qkv[k_at(i) + c] += d_score * p.qkv[q_at + c];
            r.d_qkv[k_at(i) + to_v + c] += score[i] * p.d_out[o_at + c];
          }
        }
      }
    }
  }
  return r;
}

// The largest |score| bounds everything: a score is a sum of products rounded to f32, so its
// absolute error is some ulps of it, and exp turns that into the relative error of a probability.
double Tolerance(const Problem& p, double largest) {
  double q = 0, k = 0;
  for (size_t i = 0; i < p.qkv.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % p.shape.q_stride;
    if (column < p.k_at()) q = std::max(q, std::abs(double{p.qkv[i]}));
    if (column >= p.k_at() && column < p.v_at()) k = std::max(k, std::abs(double{p.qkv[i]}));
  }
  const double score = 1 + q * k * std::sqrt(static_cast<double>(p.shape.head_dim));
  return 0x1p-23 * score * largest;
}

template <typename Want>
void ExpectClose(const std::vector<float>& got, const std::vector<Want>& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && want[i] == 0) continue;  // padding between tokens is not written
    const double error = std::abs(got[i] - want[i]);
    if (!(error <= worst)) worst = error;
  }
  EXPECT_LE(worst, tolerance) << what;
}

template <typename T>
double Largest(const std::vector<T>& values) {
  double largest = 0;
  for (const T x : values) largest = std::max(largest, std::abs(static_cast<double>(x)));
  return largest;
}

void ExpectMatchesReference(const Problem& p, const std::string& what) {
  const Result got = RunKernels(p);
  const Reference want = RunReference(p);
  ExpectClose(got.out, want.out, Tolerance(p, Largest(want.out)), what + " out");
  ExpectClose(got.lse, want.lse, Tolerance(p, 1), what + " lse");
  ExpectClose(got.d_qkv, want.d_qkv, Tolerance(p, Largest(want.d_qkv)), what + " gradients");
}

class OnEveryTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(OnEveryTarget, EqualsTheDefinitionForEveryHeadSizeAndGrouping) {
  for (const int64_t dim : {32, 64, 80, 128}) {
    for (const auto& [q_heads, kv_heads] : {std::pair{9, 3}, {4, 4}, {8, 1}}) {
      ExpectMatchesReference(
          MakeProblem(q_heads, kv_heads, dim, {0, 1, 3, 70, 71, 200}),
          std::to_string(q_heads) + ":" + std::to_string(kv_heads) + " x " + std::to_string(dim));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, OnEveryTarget,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TEST(Attention, EqualsTheDefinitionForEveryLength) {
  for (const int32_t tokens : {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 257, 300}) {
    ExpectMatchesReference(MakeProblem(3, 1, 32, {0, tokens}), std::to_string(tokens));
  }
  ExpectMatchesReference(MakeProblem(2, 1, 32, {0, 1100}), "several key blocks");
  ExpectMatchesReference(MakeProblem(2, 1, 19, {0, 33, 100}), "odd head size");
}

TEST(Attention, LargeScoresDoNotOverflow) {
  ExpectMatchesReference(MakeProblem(2, 1, 64, {0, 150}, 30), "scores of some hundreds");
  const Result huge = RunKernels(MakeProblem(2, 1, 64, {0, 150}, 1e6));
  for (const float x : huge.lse) EXPECT_TRUE(std::isfinite(x));
}

TEST(Attention, NaNInOneDocumentStaysThereAndIsNotHidden) {
  Problem p = MakeProblem(2, 1, 32, {0, 40, 90});
  p.qkv[10 * p.shape.q_stride + p.k_at()] = kNaN;  // a key of the first document
  const Result got = RunKernels(p);
  for (int64_t t = 10; t < p.tokens(); ++t) {
    EXPECT_EQ(std::isnan(got.out[t * p.shape.out_stride]), t < 40) << t;
    EXPECT_EQ(std::isnan(got.d_qkv[t * p.shape.q_stride]), t < 40) << t;
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Attention, ResultsDoNotDependOnTheNumberOfThreads) {
  const int before = NumThreads();
  for (const auto& boundaries :
       {std::vector<int32_t>{0, 700}, {0, 5}, {0, 1, 2, 5, 200, 260, 261, 500}}) {
    const Problem p = MakeProblem(6, 2, 32, boundaries);
    SetNumThreads(1);
    const Result one = RunKernels(p);
    for (const int threads : {2, 3, 8}) {
      SetNumThreads(threads);
      const Result many = RunKernels(p);
      EXPECT_TRUE(SameBits(one.out, many.out)) << threads;
      EXPECT_TRUE(SameBits(one.lse, many.lse)) << threads;
      EXPECT_TRUE(SameBits(one.d_qkv, many.d_qkv)) << threads;
    }
  }
  SetNumThreads(before);
}

TEST(Attention, ADocumentsResultDoesNotDependOnItsNeighbours) {
  const Problem all = MakeProblem(6, 2, 32, {0, 7, 157, 158, 1100, 1193});
  const Result packed = RunKernels(all);
  for (size_t i = 0; i + 1 < all.boundaries.size(); ++i) {
    const int64_t begin = all.boundaries[i], end = all.boundaries[i + 1];
    const auto slice = [&](const std::vector<float>& from, int64_t stride) {
      return std::vector<float>(from.begin() + begin * stride, from.begin() + end * stride);
    };
    Problem alone = all;
    alone.boundaries = {0, static_cast<int32_t>(end - begin)};
    alone.qkv = slice(all.qkv, all.shape.q_stride);
    alone.d_out = slice(all.d_out, all.shape.out_stride);
    const Result single = RunKernels(alone);
    EXPECT_TRUE(SameBits(slice(packed.out, all.shape.out_stride), single.out)) << i;
    EXPECT_TRUE(SameBits(slice(packed.lse, all.shape.q_heads), single.lse)) << i;
    EXPECT_TRUE(SameBits(slice(packed.d_qkv, all.shape.q_stride), single.d_qkv)) << i;
  }
}

TEST(Attention, DecodeEqualsTheLastRowOfForward) {
  for (const int32_t length : {1, 2, 255, 256, 257, 600}) {
    const Problem p = MakeProblem(9, 3, 64, {0, length});
    const Result forward = RunKernels(p);
    const int64_t width = p.shape.q_heads * p.shape.head_dim;
    std::vector<float> out(width, kNaN);
    const Scratch scratch(AttentionDecodeScratch(p.shape, length));
    AttentionDecode(p.shape, length, p.qkv.data() + (length - 1) * p.shape.q_stride,
                    p.qkv.data() + p.k_at(), p.qkv.data() + p.v_at(), out.data(),
                    scratch.data.get());
    EXPECT_TRUE(scratch.GuardIntact());
    const float* last = forward.out.data() + (length - 1) * p.shape.out_stride;
    ExpectClose(out, std::vector<float>(last, last + width), Tolerance(p, Largest(out)),
                std::to_string(length));
  }
}

}  // namespace
}  // namespace haversack
