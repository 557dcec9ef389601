#include "dist/outer_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "base/random.h"
#include "dist/test_util.h"
#include "hwy/aligned_allocator.h"

namespace haversack {
namespace {

using testing::RunRanks;

constexpr int64_t kCount = 6000;

float Noise(uint64_t seed, uint64_t step, int64_t i) {
  return RandomStream({.seed = seed, .step = step}).Normal(i);
}

// What rank `rank` does to its weights in a round: some hundredths.
void InnerSteps(std::vector<float>& weights, int rank, uint64_t round) {
  for (int64_t i = 0; i < kCount; ++i) weights[i] -= 0.01f * Noise(rank + 1, round, i);
}

std::vector<float> StartWeights() {
  std::vector<float> weights(kCount);
  for (int64_t i = 0; i < kCount; ++i) weights[i] = Noise(0, 0, i);
  return weights;
}

struct Rounds {
  int ranks = 3;
  int rounds = 4;
  double lr = 0.7, momentum = 0.9;
  std::string transport = "f32";
  std::vector<int64_t> tokens = {100, 300, 200, 50};
};

// The weights of every rank at the end.
std::vector<std::vector<float>> Train(const Rounds& run) {
  std::vector<std::vector<float>> results(run.ranks);
  const std::vector<int64_t> tokens(run.tokens.begin(), run.tokens.begin() + run.ranks);
  RunRanks(run.ranks, [&](Communicator& comm) {
    const OuterStep::Options options = {
        .lr = run.lr, .momentum = run.momentum, .wire = WireFormat::Parse(run.transport)};
    const int64_t bytes = OuterStep::Bytes(kCount, run.ranks, options.wire);
    auto memory = hwy::AllocateAligned<std::byte>(bytes);
    std::fill(memory.get(), memory.get() + bytes, std::byte{0});
    OuterStep outer(comm, kCount, {}, options, memory.get());
    std::vector<float> weights = StartWeights();
    outer.Reset(weights.data());
    for (int round = 0; round < run.rounds; ++round) {
      InnerSteps(weights, comm.rank(), round);
      outer.Run(weights.data(), tokens, "test");
    }
    results[comm.rank()] = weights;
  });
  return results;
}

// The same in double, from the formula, by one process.
std::vector<double> Expected(const Rounds& run) {
  const std::vector<float> first = StartWeights();
  std::vector<double> start(first.begin(), first.end()), v(kCount, 0.0);
  double total = 0;
  for (int r = 0; r < run.ranks; ++r) total += static_cast<double>(run.tokens[r]);
  for (int round = 0; round < run.rounds; ++round) {
    for (int64_t i = 0; i < kCount; ++i) {
      double delta = 0;
      for (int r = 0; r < run.ranks; ++r) {
        delta += static_cast<double>(run.tokens[r]) / total * 0.01 * Noise(r + 1, round, i);
      }
      v[i] = run.momentum * v[i] + delta;
      start[i] -= run.lr * (delta + run.momentum * v[i]);
    }
  }
  return start;
}

double RelativeError(const std::vector<float>& x, const std::vector<double>& expected) {
  const std::vector<float> start = StartWeights();
  double error = 0, moved = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    error += std::pow(x[i] - expected[i], 2);
    moved += std::pow(expected[i] - start[i], 2);
  }
  return std::sqrt(error / moved);
}

TEST(OuterStep, IsNesterovOnTheTokenWeightedPseudoGradient) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Rounds run = {.ranks = ranks};
    EXPECT_LT(RelativeError(Train(run)[0], Expected(run)), 1e-4) << ranks;
  }
}

TEST(OuterStep, WithRateOneAndNoMomentumItIsAveraging) {
  const Rounds run = {.rounds = 1, .lr = 1, .momentum = 0};
  const auto results = Train(run);
  for (int64_t i = 0; i < kCount; ++i) {
    double mean = 0;
    for (int r = 0; r < 3; ++r) {
      const double theta = Noise(0, 0, i) - 0.01 * Noise(r + 1, 0, i);
      mean += static_cast<double>(run.tokens[r]) / 600.0 * theta;
    }
    ASSERT_NEAR(results[0][i], mean, 1e-6);
  }
}

TEST(OuterStep, ReplicasHoldTheSameBitsWithEveryTransport) {
  for (const char* transport : {"f32", "bf16", "int8", "int4"}) {
    const auto results = Train({.ranks = 4, .transport = transport});
    for (int r = 1; r < 4; ++r) ASSERT_EQ(results[r], results[0]) << transport;
  }
}

// One round's error of nearest rounding in groups of 64 normal numbers: int8 has steps of about
// 2.4/127 of the standard deviation, error 1/sqrt(12) of that; bf16 2^-9 at most. Both directions.
TEST(OuterStep, TransportsRoundAsMuchAsTheirBitsSay) {
  for (const auto& [transport, bound] :
       std::map<std::string, double>{{"bf16", 0.004}, {"int8", 0.015}}) {
    const Rounds run = {.rounds = 20, .transport = transport};
    EXPECT_LT(RelativeError(Train(run)[0], Expected(run)), bound) << transport;
  }
}

TEST(OuterStep, ErrorFeedbackKeepsFourBitsTrueOverManyRounds) {
  // Without feedback the errors of 40 rounds, each some 8% both ways, would add up like noise to
  // 8% of the noise that the pseudo-gradients are here; with it, only the last round's remain.
  const Rounds run = {.rounds = 40, .transport = "int4"};
  EXPECT_LT(RelativeError(Train(run)[0], Expected(run)), 0.05);
}

TEST(OuterStep, AWorkerWithoutTokensHasNoSay) {
  const Rounds three = {.ranks = 3, .tokens = {100, 300, 0}};
  const Rounds two = {.ranks = 2, .tokens = {100, 300}};
  const auto with = Train(three), without = Train(two);
  for (int64_t i = 0; i < kCount; ++i) ASSERT_NEAR(with[2][i], without[0][i], 1e-6);
}

TEST(OuterStep, WhatRanksOwnMakesUpTheVector) {
  for (const int ranks : {1, 3, 5}) {
    const ExchangeShape shape(kCount, ranks, WireFormat());
    std::vector<float> v(kCount), rebuilt(kCount, -1.0f);
    for (int64_t i = 0; i < kCount; ++i) v[i] = static_cast<float>(i);
    for (int r = 0; r < ranks; ++r) {
      std::vector<float> owned(shape.OwnedCount());
      TakeOwned(shape, r, v, owned);
      PutOwned(shape, r, owned, rebuilt);
    }
    EXPECT_EQ(rebuilt, v);
  }
}

}  // namespace
}  // namespace haversack
