#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "optim/adamw_optimizer.h"
#include "optim/lr_schedule.h"

namespace haversack {
namespace {

TEST(LrSchedule, WarmsUpWithoutAStepAtZeroAndEndsAtTheFinalRate) {
  const LrSchedule schedule{.shape = LrShape::kCosine,
                            .peak = 1.0,
                            .final_ratio = 0.1,
                            .warmup_steps = 4,
                            .total_steps = 24};
  EXPECT_DOUBLE_EQ(schedule.At(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.At(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.At(4), 1.0);
  EXPECT_NEAR(schedule.At(23), 0.1, 1e-12);
  for (int step = 5; step < 24; ++step) EXPECT_LT(schedule.At(step), schedule.At(step - 1));
}

TEST(LrSchedule, LinearDecayIsALine) {
  const LrSchedule schedule{.shape = LrShape::kLinear,
                            .peak = 2.0,
                            .final_ratio = 0,
                            .warmup_steps = 0,
                            .total_steps = 5};
  for (int step = 0; step < 5; ++step) EXPECT_NEAR(schedule.At(step), 2.0 - 0.5 * step, 1e-12);
}

TEST(LrSchedule, ARateOfZeroStaysZero) {
  const LrSchedule schedule{.peak = 0, .warmup_steps = 2, .total_steps = 10};
  for (int step = 0; step < 10; ++step) EXPECT_EQ(schedule.At(step), 0);
}

TEST(LrSchedule, UnknownShapeIsRefusedByName) { EXPECT_THROW(ParseLrShape("sawtooth"), UserError); }

TEST(Clip, FollowsTheGlobalNorm) {
  EXPECT_EQ(ClipFactor(0.5, 1.0), 1);
  EXPECT_NEAR(ClipFactor(4.0, 1.0), 0.25, 1e-6);
  EXPECT_EQ(ClipFactor(4.0, 0), 1);
}

}  // namespace
}  // namespace haversack
