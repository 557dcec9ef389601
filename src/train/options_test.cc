#include "train/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace haversack {
namespace {

std::vector<std::string> Changes(const TrainOptions& before, const TrainOptions& now) {
  return CheckResumed(RunIdentity(before), RunIdentity(now));
}

std::string Refusal(const TrainOptions& before, const TrainOptions& now) {
  try {
    Changes(before, now);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(CheckResumed, SaysNothingOfEqualOptions) {
  EXPECT_TRUE(Changes(TrainOptions(), TrainOptions()).empty());
}

TEST(CheckResumed, RefusesWhatGivesStoredPositionsAnotherMeaning) {
  TrainOptions now;
  now.batch = 4;
  const std::string refusal = Refusal(TrainOptions(), now);
  EXPECT_NE(refusal.find("--batch is 4 here, but the checkpoint's run has 1"), std::string::npos)
      << refusal;
  now = {};
  now.seq = 32;
  EXPECT_NE(Refusal(TrainOptions(), now), "");
  now = {};
  now.seed = 1;
  EXPECT_NE(Refusal(TrainOptions(), now), "");
  now = {};
  now.random_init = true;
  EXPECT_NE(Refusal(TrainOptions(), now), "");
  now = {};
  now.cross_document = true;
  EXPECT_NE(Refusal(TrainOptions(), now), "");
}

TEST(CheckResumed, ReportsEachChangeThatItHonours) {
  TrainOptions now;
  now.lr = 0;
  now.steps = 12;
  now.memory = 512 << 20;
  now.threads = 2;
  const std::vector<std::string> changes = Changes(TrainOptions(), now);
  const std::vector<std::string> expected = {
      "--lr changes from 0.0001 to 0.0", "--memory changes from the default to 512 MiB",
      "--steps changes from 0 to 12: the learning-rate schedule now ends there",
      "--threads changes from the default to 2"};
  EXPECT_EQ(changes, expected);
}

TEST(CheckResumed, KeepsAMicroBatchThatIsNotGiven) {
  TrainOptions before;
  before.micro_batch = 2;
  EXPECT_TRUE(Changes(before, TrainOptions()).empty());
  EXPECT_EQ(Changes(TrainOptions(), before).size(), 1u);
}

TEST(CheckResumed, RefusesAFlagThatTheCheckpointDoesNotKnow) {
  nlohmann::json now = RunIdentity(TrainOptions());
  now["--unheard-of"] = 3;
  EXPECT_THROW(CheckResumed(RunIdentity(TrainOptions()), now), UserError);
}

}  // namespace
}  // namespace haversack
