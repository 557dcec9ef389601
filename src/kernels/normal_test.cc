#include "kernels/normal.h"

#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

constexpr RandomKey kKey = {
    .seed = 7, .purpose = RandomPurpose::kProjection, .layer = 3, .step = 11};

TEST(Normal, AgreesWithTheStreamElementByElement) {
  const RandomStream stream(kKey);
  ForEachTarget([&] {
    for (const uint64_t first : {uint64_t{0}, uint64_t{5}, uint64_t{(1ull << 34) - 37}}) {
      constexpr int64_t kCount = 20011;
      Floats out(kCount);
      FillNormal(kKey, first, kCount, 0.5f, out.data());
      for (int64_t i = 0; i < kCount; ++i) {
        const uint64_t element = first + static_cast<uint64_t>(i);
        const double expected = stream.Normal(element);
        const double radius = std::hypot(expected, stream.Normal(element ^ 1));
        // An error of kEps / 2 in the uniform number moves the radius by kEps / (2 radius), and by
        // 2^-12 at most; some ten further roundings are of its own size.
        const double allowed = 12 * kEps * radius + std::min(0x1p-12, kEps / (2 * radius)) + kEps;
        ASSERT_NEAR(out[i], 0.5 * expected, 0.5 * allowed) << "element " << i;
      }
    }
  });
}

TEST(Normal, AnElementIsTheSameWhereverTheCallBegins) {
  ForEachTarget([] {
    Floats whole(1000);
    FillNormal(kKey, 100, 1000, 1, whole.data());
    for (const int64_t begin : {1, 2, 3, 4, 63, 500}) {
      Floats part(97);
      FillNormal(kKey, 100 + static_cast<uint64_t>(begin), 97, 1, part.data());
      ExpectSameBits(part, Floats(whole.begin() + begin, whole.begin() + begin + 97));
    }
  });
}

TEST(Normal, MomentsAreThoseOfTheNormalDistribution) {
  constexpr int64_t kCount = 1 << 20;
  Floats out(kCount);
  FillNormal(kKey, 0, kCount, 1, out.data());
  double moment[5] = {};
  for (const float x : out) {
    for (int k = 1; k <= 4; ++k) moment[k] += std::pow(x, k) / kCount;
  }
  // Five standard errors of the k-th moment: sqrt((E x^2k - (E x^k)^2) / count).
  const double error = 5 / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(moment[1], 0, error);
  EXPECT_NEAR(moment[2], 1, error * std::sqrt(2));
  EXPECT_NEAR(moment[3], 0, error * std::sqrt(15));
  EXPECT_NEAR(moment[4], 3, error * std::sqrt(96));
}

TEST(Normal, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      Floats out(50000);
      FillNormal(kKey, 3, 50000, 1, out.data());
      return out;
    });
  });
}

}  // namespace
}  // namespace haversack
