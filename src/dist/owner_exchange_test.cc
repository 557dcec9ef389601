#include "dist/owner_exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "base/random.h"
#include "dist/delayed_link.h"
#include "dist/test_util.h"
#include "hwy/aligned_allocator.h"

namespace haversack {
namespace {

using testing::RunRanks;

std::vector<float> Noise(int64_t count, uint64_t seed) {
  const RandomStream random({.seed = seed});
  std::vector<float> x(count);
  for (int64_t i = 0; i < count; ++i) x[i] = random.Normal(i);
  return x;
}

// An exchange with its buffers.
struct Exchange {
  Exchange(const Communicator& comm, int64_t count, const WireFormat& wire)
      : memory(
            hwy::AllocateAligned<std::byte>(OwnerExchange::BufferBytes(count, comm.size(), wire))),
        exchange(comm, count, wire, memory.get(), 100) {}
  hwy::AlignedFreeUniquePtr<std::byte[]> memory;
  OwnerExchange exchange;
};

// Every rank's result of averaging Noise(count, rank), weighted.
std::vector<std::vector<float>> Averages(int ranks, int64_t count, const std::string& transport,
                                         const std::vector<double>& weights) {
  std::vector<std::vector<float>> results(ranks);
  RunRanks(ranks, [&](Communicator& comm) {
    Exchange e(comm, count, WireFormat::Parse(transport));
    std::vector<float> x = Noise(count, comm.rank());
    for (int round = 0; round < 2; ++round) {  // buffers serve again
      x = Noise(count, comm.rank());
      AverageInto(e.exchange, x, weights, "test");
    }
    results[comm.rank()] = x;
  });
  return results;
}

std::vector<double> Weights(int ranks) {
  std::vector<double> weights(ranks);
  double total = 0;
  for (int r = 0; r < ranks; ++r) total += weights[r] = r + 1.0;
  for (double& w : weights) w /= total;
  return weights;
}

TEST(OwnerExchange, AveragesWhatTheRanksHold) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{5000}, int64_t{300'003}}) {
      const std::vector<double> weights = Weights(ranks);
      const auto results = Averages(ranks, count, "f32", weights);
      std::vector<std::vector<float>> inputs;
      for (int r = 0; r < ranks; ++r) inputs.push_back(Noise(count, r));
      for (int64_t i = 0; i < count; ++i) {
        double expected = 0;
        for (int r = 0; r < ranks; ++r) expected += weights[r] * inputs[r][i];
        // A sum of `ranks` products of numbers below 6.
        ASSERT_NEAR(results[0][i], expected, 6e-7 * 6 * ranks) << ranks << " " << i;
      }
    }
  }
}

TEST(OwnerExchange, AllRanksHoldTheSameBitsWhateverTheTransport) {
  for (const char* transport : {"f32", "bf16", "int8", "int4"}) {
    for (const int ranks : {2, 3, 8}) {
      const auto results = Averages(ranks, 70'001, transport, Weights(ranks));
      for (int r = 1; r < ranks; ++r) {
        ASSERT_EQ(results[r], results[0]) << transport << ", rank " << r;
      }
    }
  }
}

TEST(OwnerExchange, EqualVectorsStayAsTheyAre) {
  RunRanks(3, [&](Communicator& comm) {
    const std::vector<float> before = Noise(10'000, 7);
    std::vector<float> x = before;
    Exchange e(comm, 10'000, WireFormat());
    AverageInto(e.exchange, x, std::vector<double>{0.3, 0.6, 0.1}, "test");
    EXPECT_EQ(x, before);
  });
}

TEST(OwnerExchange, ARankOfWeightZeroAddsNothingAndSendsNoPart) {
  const auto three = Averages(3, 5000, "f32", {0.25, 0.75, 0});
  const auto two = Averages(2, 5000, "f32", {0.25, 0.75});
  for (size_t i = 0; i < 5000; ++i) ASSERT_NEAR(three[2][i], two[0][i], 1e-6);
}

TEST(OwnerExchange, MovesOnlyWhatIsReady) {
  RunRanks(2, [&](Communicator& comm) {
    const int64_t count = 1'000'000;
    Exchange e(comm, count, WireFormat());
    struct Job : ExchangeJob {
      std::vector<float> x;
      int64_t lowest = 0;
      void Contribute(int64_t begin, int64_t n, float* out) override {
        EXPECT_GE(begin, lowest);
        std::copy_n(x.data() + begin, n, out);
      }
      void Apply(int64_t begin, int64_t n, const float* result) override {
        std::copy_n(result, n, x.data() + begin);
      }
    } job;
    job.x = Noise(count, comm.rank());
    e.exchange.Start(job, std::vector<double>{1, 1});
    for (int64_t ready = count; ready > 0; ready -= count / 50) {
      job.lowest = ready;
      e.exchange.Advance(ready);
    }
    job.lowest = 0;
    e.exchange.Finish("test");
    const std::vector<float> a = Noise(count, 0), b = Noise(count, 1);
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(job.x[i], a[i] + b[i]);
  });
}

TEST(OwnerExchange, NoRankMovesMoreThanTwiceTheVector) {
  RunRanks(4, [&](Communicator& comm) {
    const int64_t count = 1 << 20;
    Exchange e(comm, count, WireFormat());
    std::vector<float> x = Noise(count, comm.rank());
    AverageInto(e.exchange, x, std::vector<double>(4, 0.25), "test");
    const double share = static_cast<double>(comm.traffic().sent_bytes) / (4.0 * count);
    EXPECT_NEAR(share, 2 * 3 / 4.0, 0.01);
    EXPECT_EQ(comm.traffic().sent_bytes, comm.traffic().received_bytes);
  });
}

TEST(OwnerExchange, ALateRankIsNamed) {
  try {
    RunRanks(
        3,
        [&](Communicator& comm) {
          if (comm.rank() == 1) return;
          Exchange e(comm, 5000, WireFormat());
          std::vector<float> x = Noise(5000, 0);
          AverageInto(e.exchange, x, std::vector<double>(3, 1 / 3.0), "the averaging");
        },
        0.2);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kPeer);
    EXPECT_NE(std::string(error.what()).find("rank 1 did not come to the averaging"),
              std::string::npos)
        << error.what();
  }
}

TEST(Communicator, GroupsTalkAmongThemselves) {
  RunRanks(5, [](Communicator& comm) {
    const Communicator group = comm.Split(comm.rank() % 2);
    EXPECT_EQ(group.size(), comm.rank() % 2 == 0 ? 3 : 2);
    EXPECT_EQ(group.world_rank(group.rank()), comm.rank());
    const std::vector<int> ranks = group.AllGather(comm.rank(), "test");
    for (size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(ranks[i], comm.rank() % 2 + 2 * (int)i);
    EXPECT_EQ(comm.Broadcast(comm.rank() == 3 ? std::string(3'000'000, 'x') : "", 3, "test").size(),
              3'000'000u);
    EXPECT_EQ(comm.Sum(comm.rank(), "test"), 10);
  });
}

TEST(DelayedLink, DeliversWhatWasSentAndNotBefore) {
  RunRanks(
      3,
      [](Communicator& comm) {
        const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
        for (int i = 0; i < 3; ++i) {
          EXPECT_EQ(comm.AllGather(comm.rank() + i, "test"), (std::vector<int>{i, i + 1, i + 2}));
          // No earlier than the delay after the others sent, whenever this rank came to receive.
          const std::vector<int64_t> sent = comm.AllGather(static_cast<int64_t>(now()), "test");
          const int64_t here = now();
          for (int other = 0; other < 3; ++other) {
            if (other == comm.rank()) continue;
            EXPECT_GE(here, sent[other] + 20'000'000);
          }
        }
      },
      60, [](std::unique_ptr<Link> link) { return DelayLink(std::move(link), 0.02); });
}

TEST(Communicator, AloneSendsNothing) {
  Communicator comm;
  EXPECT_EQ(comm.AllGather(5, "test"), std::vector<int>{5});
  EXPECT_EQ(comm.Broadcast("text", 0, "test"), "text");
  EXPECT_EQ(comm.traffic().sent_bytes, 0);
  EXPECT_EQ(comm.traffic().wait_seconds, 0);
}

TEST(Communicator, ANoticeReachesTheOthersOnce) {
  RunRanks(3, [](Communicator& comm) {
    if (comm.rank() == 1) comm.Notice();
    comm.Barrier("test");
    EXPECT_EQ(comm.Noticed(), comm.rank() != 1);
    EXPECT_FALSE(comm.Noticed());
  });
}

}  // namespace
}  // namespace haversack
