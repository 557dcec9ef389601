// For the kernels' tests: every dispatch target of this machine, several thread counts, random
// inputs, numeric gradients and comparisons in units of f32 rounding.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "hwy/aligned_allocator.h"
#include "hwy/targets.h"

namespace haversack {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

constexpr double kEps = 0x1p-24;  // a rounding to f32 is off by at most this, relatively

// Runs body() with each target that was compiled and that this CPU supports, the slowest included.
template <typename Body>
void ForEachTarget(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

inline void ExpectSameBits(const Floats& actual, const Floats& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  if (actual.empty()) return;
  EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)), 0);
}

// run() returns all results as one vector; they must agree bit for bit for 1, 2 and 3 threads.
template <typename Run>
void ExpectThreadCountIndependent(const Run& run) {
  const int before = NumThreads();
  SetNumThreads(1);
  const Floats expected = run();
  for (const int threads : {2, 3}) {
    SCOPED_TRACE(threads);
    SetNumThreads(threads);
    ExpectSameBits(run(), expected);
  }
  SetNumThreads(before);
}

// Normal numbers of the given standard deviation, the same for the same seed.
inline Floats RandomFloats(int64_t count, uint64_t seed, double deviation = 1, double mean = 0) {
  const RandomStream stream({.seed = seed});
  Floats values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(mean + deviation * stream.Normal(i));
  }
  return values;
}

inline std::vector<int32_t> RandomIds(int64_t count, uint64_t seed, uint32_t limit) {
  const RandomStream stream({.seed = seed});
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(stream.Bits(i) % limit);
  return ids;
}

inline Doubles ToDouble(const Floats& values) { return {values.begin(), values.end()}; }

inline void Append(Floats& to, const Floats& from) {
  to.insert(to.end(), from.begin(), from.end());
}

inline double MaxAbs(const Doubles& values) {
  double max = 0;
  for (const double v : values) max = std::max(max, std::abs(v));
  return max;
}

// |actual - expected| <= roundings * kEps * (|expected| + magnitude), element by element, where
// `magnitude` bounds the terms whose cancellation made the result.
inline void ExpectClose(const Floats& actual, const Doubles& expected, double roundings,
                        double magnitude) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], roundings * kEps * (std::abs(expected[i]) + magnitude))
        << "element " << i << " of " << actual.size();
  }
}

// d loss(x) / d x by central differences in double. With step 1e-4 the truncation error is some
// 1e-9 times the third derivative, far below f32 rounding.
template <typename Loss>
Doubles NumericGradient(Doubles x, const Loss& loss) {
  constexpr double kStep = 1e-4;
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = x[i];
    x[i] = value + kStep;
    const double above = loss(x);
    x[i] = value - kStep;
    gradient[i] = (above - loss(x)) / (2 * kStep);
    x[i] = value;
  }
  return gradient;
}

inline double Dot(const Floats& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Scratch as the kernels want it, filled with NaN so that nothing can count on zeros.
inline hwy::AlignedFreeUniquePtr<std::byte[]> NanScratch(size_t bytes) {
  auto scratch = hwy::AllocateAligned<std::byte>(bytes);
  std::memset(scratch.get(), 0xFF, bytes);
  return scratch;
}

}  // namespace haversack
