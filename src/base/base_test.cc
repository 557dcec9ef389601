#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/random.h"
#include "base/threads.h"

namespace haversack {
namespace {

TEST(Bytes, ParsesUnitsAndRefusesWords) {
  EXPECT_EQ(ParseBytes("3GiB", "--memory"), 3ull << 30);
  EXPECT_EQ(ParseBytes("512 MiB", "--memory"), 512ull << 20);
  EXPECT_EQ(ParseBytes("2.5GB", "--memory"), 2500000000ull);
  EXPECT_EQ(ParseBytes("4000000", "--memory"), 4000000ull);
  for (const char* bad : {"", "much", "-1GiB", "3 parsecs", "nan", "1e30"}) {
    EXPECT_THROW(ParseBytes(bad, "--memory"), UserError) << bad;
  }
  EXPECT_EQ(FormatBytes(640ull << 20), "640 MiB");
  EXPECT_EQ(FormatBytes(17), "17 B");
}

TEST(Random, NormalHasUnitVariance) {
  const RandomStream stream({.seed = 7});
  const int n = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double z = stream.Normal(i);
    sum += z;
    squares += z * z;
  }
  // Five standard errors: 1/sqrt(n) for the mean, sqrt(2/n) for the variance.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
}

TEST(Random, StreamsOfDifferentKeysDiffer) {
  std::set<uint32_t> seen;
  for (uint64_t seed : {0, 1})
    for (uint32_t layer : {0u, 1u})
      for (uint64_t step : {0, 1})
        seen.insert(RandomStream({.seed = seed, .layer = layer, .step = step}).Bits(0));
  EXPECT_EQ(seen.size(), 8u);
}

TEST(Random, PermutationVisitsEachIndexOnce) {
  for (uint64_t size : {1, 2, 3, 17, 64, 1000}) {
    const RandomPermutation permutation(size, {.seed = 3, .purpose = RandomPurpose::kShuffle});
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) seen.insert(permutation(i));
    EXPECT_EQ(seen.size(), size);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

TEST(Threads, ParallelForCoversEachIndexOnce) {
  std::vector<int> hits(1001, 0);
  ParallelFor(1001, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++hits[i];
  });
  EXPECT_EQ(hits, std::vector<int>(1001, 1));
}

TEST(Threads, ExceptionReachesTheCaller) {
  EXPECT_THROW(ParallelTasks(8,
                             [](int64_t task, int) {
                               if (task == 5) throw UserError(ExitCode::kUsage, "task {}", task);
                             }),
               UserError);
}

}  // namespace
}  // namespace haversack
