#include "plan/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/random.h"
#include "exec/arena.h"
#include "models/config.h"

namespace haversack {
namespace {

constexpr int64_t kSeq = 64;
constexpr int64_t kVocab = 96;

Graph GraphOf(int layers) {
  return BuildGraph(ParseModelConfig({{"model_type", "llama"},
                                      {"hidden_size", 64},
                                      {"intermediate_size", 160},
                                      {"num_hidden_layers", layers},
                                      {"num_attention_heads", 4},
                                      {"num_key_value_heads", 2},
                                      {"vocab_size", kVocab}},
                                     "test"),
                    {.positions = kSeq, .loss_chunk = 32});
}

// One document of random tokens a micro-batch.
class RandomTokens {
 public:
  MicroBatch operator()(int64_t index, int64_t tokens) {
    const RandomStream random({.seed = static_cast<uint64_t>(index)});
    ids_.clear();
    positions_.clear();
    for (int64_t t = 0; t <= tokens; ++t) {
      ids_.push_back(static_cast<int32_t>(random.Below(t, kVocab)));
      if (t < tokens) positions_.push_back(static_cast<int32_t>(t));
    }
    boundaries_ = {0, static_cast<int32_t>(tokens)};
    return {.ids = std::span(ids_).first(tokens),
            .targets = std::span(ids_).subspan(1),
            .positions = positions_,
            .boundaries = boundaries_,
            .loss_scale = 1.0f / static_cast<float>(tokens)};
  }

 private:
  std::vector<int32_t> ids_, positions_, boundaries_;
};

class CalibrationTest : public testing::Test {
 protected:
  CalibrationTest()
      : weights_(layout_.total),
        first_(layout_.total),
        second_(layout_.total),
        arena_(int64_t{16} << 20),
        region_(arena_.Take("schedule", arena_.bytes())) {
    const RandomStream random({.seed = 5});
    for (int64_t i = 0; i < layout_.total; ++i) weights_[i] = 0.15f * random.Normal(i);
  }

  Calibration Make(int64_t seq = kSeq) {
    return Calibration(whole_, one_block_, layout_,
                       {.weights = weights_.data(),
                        .first = first_.data(),
                        .second = second_.data(),
                        .region = region_,
                        .region_bytes = arena_.bytes()},
                       seq, RandomTokens());
  }

  std::vector<double> Gradient(const Plan& plan, int64_t batch) {
    std::vector<float> grads(layout_.total);
    ModelState state;
    state.weights = weights_.data();
    state.grads = grads.data();
    const Schedule schedule = Lower(whole_, plan, {1, kSeq}, ScheduleMode::kTrain);
    Executor executor(whole_, layout_, state, region_, arena_.bytes());
    RandomTokens tokens;
    MicroBatch micro = tokens(batch, kSeq);
    double loss = 0;
    micro.loss_sum = &loss;
    executor.Run(schedule, micro, false);
    return {grads.begin(), grads.end()};
  }

  Plan AllEncoded(const std::string& codec) {
    Plan plan = KeepPlan(whole_, 1);
    for (const OpenValue& open : OpenValues(one_block_, ActionSet())) {
      for (int layer = 0; layer < whole_.layers; ++layer) {
        const ValueId v = ValueInLayer(whole_, one_block_, open.value, layer);
        plan.actions[v] = ParseAction(whole_.values[v], codec, "test");
      }
    }
    return plan;
  }

  const Graph whole_ = GraphOf(3);
  const Graph one_block_ = GraphOf(1);
  const ParamLayout layout_{whole_};
  std::vector<float> weights_, first_, second_;
  Arena arena_;
  std::byte* region_;
};

double SquaredDistance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

std::vector<double> Sum(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST_F(CalibrationTest, VarianceIsHalfTheMeanSquaredDifferenceOfConsecutiveGradients) {
  Calibration calibration = Make();
  EXPECT_EQ(calibration.tokens(), kSeq);
  calibration.MeasureErrors(KeepPlan(whole_, 1));
  calibration.MeasureGains();
  const Plan keep = KeepPlan(whole_, 1);
  double sum = 0;
  for (int i = 1; i < 8; ++i) sum += SquaredDistance(Gradient(keep, i), Gradient(keep, i - 1));
  EXPECT_NEAR(calibration.variance(), sum / 14, 1e-6 * sum);
}

// The check's share is that of the summed error of three micro-batches, its bias 0 where their
// errors have nothing in common.
TEST_F(CalibrationTest, CheckEqualsTheDistanceOfStoredGradients) {
  Calibration calibration = Make();
  calibration.MeasureErrors(KeepPlan(whole_, 1));
  calibration.MeasureGains();
  const Plan plan = AllEncoded("bf16");
  const Calibration::Check check = calibration.CheckPlan(plan);
  const Plan keep = KeepPlan(whole_, 1);
  std::vector<double> exact(layout_.total), encoded(layout_.total);
  double first = 0;
  for (int i = 8; i < 11; ++i) {
    exact = Sum(exact, Gradient(keep, i));
    encoded = Sum(encoded, Gradient(plan, i));
    if (i == 8) first = SquaredDistance(exact, encoded);
  }
  const double all = SquaredDistance(exact, encoded);
  EXPECT_NEAR(check.share, all / (3 * calibration.variance()), 1e-4 * check.share);
  EXPECT_NEAR(check.bias, std::max(0.0, (all / first - 3) / 6), 1e-3);
  EXPECT_GT(check.cosine, 0.999);
  EXPECT_LT(check.bias, 0.3);
}

TEST_F(CalibrationTest, AnExactPlanAddsNothing) {
  Calibration calibration = Make();
  calibration.MeasureErrors(KeepPlan(whole_, 1));
  calibration.MeasureGains();
  const Calibration::Check check = calibration.CheckPlan(RecomputePlan(whole_, 1));
  EXPECT_EQ(check.share, 0);
  EXPECT_NEAR(check.cosine, 1, 1e-12);
}

// The estimate of a plan that encodes one kind of value equals what was probed, and shares of
// several kinds add up to about what they have together.
TEST_F(CalibrationTest, EstimatedSharesAddUp) {
  Calibration calibration = Make();
  calibration.MeasureErrors(KeepPlan(whole_, 1));
  calibration.MeasureGains();
  double estimate = 0;
  Plan plan = KeepPlan(whole_, 1);
  for (const OpenValue& open : OpenValues(one_block_, ActionSet())) {
    const std::string codec = open.sensitive[0] ? "bf16" : "int8";
    for (const Action& action : open.actions) {
      if (action.kind != Action::Kind::kEncode || !action.ToText().starts_with(codec)) continue;
      for (int layer = 0; layer < whole_.layers; ++layer) {
        plan.actions[ValueInLayer(whole_, one_block_, open.value, layer)] = action;
        estimate += NoiseShare(calibration.noise(), whole_, one_block_, layer, open, action, false);
      }
      break;
    }
  }
  const Calibration::Check check = calibration.CheckPlan(plan);
  EXPECT_GT(estimate, 0);
  EXPECT_LT(check.share, 2 * estimate);
  EXPECT_GT(check.share, estimate / 2);
}

// More bits, less error; and a value whose every number is not finite has no share to speak of.
TEST_F(CalibrationTest, ErrorsFallWithBitsAndNonFiniteValuesAreNotAllowed) {
  Calibration calibration = Make();
  calibration.MeasureErrors(KeepPlan(whole_, 1));
  const Value& value = whole_.values[ValueInLayer(whole_, one_block_, 0, 1)];
  const auto error = [&](const Calibration& c, const char* codec) {
    return c.noise().error.at(ErrorKey(value, value.pieces[0], ParseCodec(codec, "test")));
  };
  EXPECT_LT(error(calibration, "bf16"), error(calibration, "int8+o1"));
  EXPECT_LT(error(calibration, "int8+o1"), error(calibration, "int4/32+o1"));
  weights_.assign(weights_.size(), std::numeric_limits<float>::quiet_NaN());
  Calibration broken = Make();
  broken.MeasureErrors(KeepPlan(whole_, 1));
  broken.MeasureGains();
  for (const OpenValue& open : OpenValues(one_block_, ActionSet())) {
    EXPECT_EQ(NoiseShare(broken.noise(), whole_, one_block_, 0, open, open.actions.back(), false),
              std::numeric_limits<double>::infinity());
  }
}

TEST_F(CalibrationTest, ASmallRegionGetsShorterMicroBatchesOrNone) {
  const auto tokens = [&](int64_t bytes) {
    return Calibration(whole_, one_block_, layout_, {.region_bytes = bytes}, 4096, RandomTokens())
        .tokens();
  };
  EXPECT_EQ(tokens(int64_t{1} << 30), 256);
  EXPECT_EQ(tokens(1000), 0);
  int64_t before = 0;
  for (int64_t bytes = 1000; bytes < int64_t{64} << 20; bytes *= 2) {
    EXPECT_GE(tokens(bytes), before);
    before = tokens(bytes);
  }
  EXPECT_GT(before, 0);
}

}  // namespace
}  // namespace haversack
