#include "dist/prediction.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace haversack {
namespace {

constexpr PredictedRun kRun = {.workers = 8,
                               .parameters = 100 << 20,
                               .tokens = 1e9,
                               .tokens_per_sequence = 1000,
                               .batch = 64,
                               .seconds_per_sequence = 1,
                               .micro_batch_sequences = 4};
constexpr NetworkLink kSlow = {.bits_per_second = 1e8, .latency_seconds = 0.03};

TEST(Prediction, CountsSyncsAndBytes) {
  DistOptions options;
  const Prediction ddp = Predict(options, DistMode::kDdp, kRun, kSlow);
  // 1e9 tokens by 64000 a step; each sync moves 2 * 7/8 of 400 MiB.
  EXPECT_EQ(ddp.steps, 15625);
  EXPECT_EQ(ddp.syncs, 15625);
  EXPECT_NEAR(ddp.sent_bytes / ddp.syncs / (1.75 * 400 * (1 << 20)), 1, 0.01);
  options.transport = "int8";
  const Prediction diloco = Predict(options, DistMode::kDiloco, kRun, kSlow);
  EXPECT_EQ(diloco.steps, 15625);
  EXPECT_EQ(diloco.syncs, 313);
  // 50 times fewer exchanges, of 8.25 in place of 32 bits.
  EXPECT_NEAR(ddp.sent_bytes / diloco.sent_bytes, 15625.0 / 313 * 32 / 8.25, 10);
  EXPECT_GT(diloco.utilisation(), ddp.utilisation());
}

TEST(Prediction, TransferTakesWhatTheLinkSays) {
  const Prediction ddp = Predict({}, DistMode::kDdp, kRun, kSlow);
  // 700 MiB by 100 Mbit/s are 58.7 s; 4 of a step's 8 sequences hide two thirds of theirs.
  EXPECT_NEAR(ddp.wait_seconds / ddp.steps, 58.7 - 2.67 + 0.12, 0.1);
  EXPECT_NEAR(ddp.compute_seconds / ddp.steps, 8, 1e-9);
}

TEST(Prediction, AGrowingBatchNeedsFewerSyncsUntilItIsCapped) {
  const DistOptions options;
  double before = 1e9;
  for (const BatchGrowth growth :
       {BatchGrowth::kFixed, BatchGrowth::kLinear, BatchGrowth::kDoubling}) {
    const Prediction p = Predict(options, DistMode::kAdloco, kRun, kSlow, growth, 1e9);
    EXPECT_LT(p.syncs, before);
    before = p.syncs;
  }
  // Capped at twice the first batch: linear again, half as many.
  const Prediction capped =
      Predict(options, DistMode::kAdloco, kRun, kSlow, BatchGrowth::kDoubling, 128);
  EXPECT_NEAR(capped.syncs, 313 / 2.0, 2);
}

TEST(Prediction, EndsWhereTokensAddUpToRoundingOnly) {
  PredictedRun run = kRun;
  run.batch = 3;
  run.tokens_per_sequence = 253.0 / 19;
  for (int steps = 1; steps < 200; ++steps) {
    run.tokens = run.batch * run.tokens_per_sequence * steps;
    const Prediction p = Predict({}, DistMode::kDiloco, run, kSlow);
    EXPECT_EQ(p.steps, steps);
    EXPECT_EQ(p.syncs, (steps + 49) / 50);
  }
}

TEST(Prediction, OneWorkerSendsNothing) {
  PredictedRun run = kRun;
  run.workers = 1;
  for (const DistMode mode : {DistMode::kDdp, DistMode::kDiloco, DistMode::kAdloco}) {
    const Prediction p = Predict({}, mode, run, kSlow);
    EXPECT_EQ(p.syncs, 0);
    EXPECT_EQ(p.sent_bytes, 0);
    EXPECT_EQ(p.utilisation(), 1);
  }
}

TEST(Prediction, ReadsBandwidthsAndLatencies) {
  EXPECT_EQ(ParseBandwidth("100Mbit", "--bandwidth"), 1e8);
  EXPECT_EQ(ParseBandwidth("2.5Gbit", "--bandwidth"), 2.5e9);
  EXPECT_EQ(ParseSeconds("30ms", "--latency"), 0.03);
  EXPECT_EQ(ParseSeconds("0.1", "--latency"), 0.1);
  for (const char* text : {"", "fast", "-1Mbit", "10MB", "0"}) {
    EXPECT_THROW(ParseBandwidth(text, "--bandwidth"), UserError) << text;
  }
}

}  // namespace
}  // namespace haversack
