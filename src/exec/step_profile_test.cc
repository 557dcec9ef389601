#include "exec/step_profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "exec/arena.h"
#include "exec/machine_limits.h"
#include "models/config.h"
#include "schedule/plan.h"

namespace haversack {
namespace {

constexpr int64_t kHidden = 32, kFfn = 48, kVocab = 64;
constexpr int kLayers = 3;
constexpr BatchShape kShape = {.sequences = 2, .seq = 20};

Graph TinyGraph() {
  const nlohmann::json json = {{"model_type", "llama"},     {"hidden_size", kHidden},
                               {"intermediate_size", kFfn}, {"num_hidden_layers", kLayers},
                               {"num_attention_heads", 4},  {"num_key_value_heads", 2},
                               {"vocab_size", kVocab},      {"tie_word_embeddings", true}};
  // 40 tokens in chunks of 24: the last one is shorter.
  return BuildGraph(ParseModelConfig(json, "test"), {.positions = 64, .loss_chunk = 24});
}

class StepProfileTest : public testing::Test {
 protected:
  StepProfileTest()
      : graph_(TinyGraph()),
        schedule_(Lower(graph_, RecomputePlan(graph_, 2), kShape, ScheduleMode::kTrain)) {}

  // As an executor's observer would, with a second an instruction.
  StepProfile Profile() const {
    StepProfile profile(graph_);
    for (const Instr& instr : schedule_.instrs) profile.Add(schedule_, instr, 1);
    return profile;
  }
  static const StepProfile::Row& Find(const StepProfile& profile, const std::string& name,
                                      const std::string& work) {
    for (const StepProfile::Row& row : profile.rows()) {
      if (row.name == name && row.work == work) return row;
    }
    ADD_FAILURE() << "no row " << name << " " << work;
    return profile.rows()[0];
  }

  Graph graph_;
  Schedule schedule_;
};

TEST_F(StepProfileTest, EveryInstructionIsInOneRow) {
  const StepProfile profile = Profile();
  int64_t count = 0;
  for (const StepProfile::Row& row : profile.rows()) count += row.count;
  EXPECT_EQ(count, static_cast<int64_t>(schedule_.instrs.size()));
  EXPECT_EQ(profile.seconds(), static_cast<double>(count));
  EXPECT_EQ(Find(profile, "gate_up", "forward").count, kLayers);
  EXPECT_EQ(Find(profile, "gate_up", "recompute").count, kLayers);
  EXPECT_EQ(Find(profile, "gate_up", "backward").count, kLayers);
}

TEST_F(StepProfileTest, AnExecutorsObserverSeesEveryInstruction) {
  const ParamLayout layout(graph_);
  Arena arena(2 * layout.bytes() + schedule_.arena_bytes + 4096);
  ModelState state;
  state.weights = reinterpret_cast<float*>(arena.Take("weights", layout.bytes()));
  state.grads = reinterpret_cast<float*>(arena.Take("gradients", layout.bytes()));
  Executor executor(graph_, layout, state, arena.Take("schedule", schedule_.arena_bytes),
                    schedule_.arena_bytes);
  std::vector<int32_t> ids(kShape.tokens(), 1), positions(kShape.tokens());
  for (int64_t t = 0; t < kShape.tokens(); ++t) {
    positions[t] = static_cast<int32_t>(t % kShape.seq);
  }
  const std::vector<int32_t> boundaries = {0, static_cast<int32_t>(kShape.seq),
                                           static_cast<int32_t>(kShape.tokens())};
  double loss = 0;
  StepProfile profile(graph_);
  executor.set_observer([&](const Schedule& schedule, const Instr& instr, double seconds) {
    profile.Add(schedule, instr, seconds);
  });
  executor.Run(schedule_,
               {.ids = ids,
                .targets = ids,
                .positions = positions,
                .boundaries = boundaries,
                .loss_sum = &loss},
               false);
  const StepProfile expected = Profile();
  ASSERT_EQ(profile.rows().size(), expected.rows().size());
  for (size_t i = 0; i < expected.rows().size(); ++i) {
    EXPECT_EQ(profile.rows()[i].count, expected.rows()[i].count);
    EXPECT_GT(profile.rows()[i].seconds, 0);
  }
}

TEST_F(StepProfileTest, ProductsComeToTheOpsFlops) {
  for (const Node& node : graph_.nodes) {
    const auto sum = [](const std::vector<MatrixProduct>& products) {
      double flops = 0;
      for (const MatrixProduct& p : products) flops += p.flops() * static_cast<double>(p.count);
      return flops;
    };
    const std::vector<MatrixProduct> forward = node.op->forward_products(kShape);
    if (forward.empty()) continue;
    EXPECT_EQ(sum(forward), node.op->forward_flops(kShape)) << node.name;
    EXPECT_EQ(sum(node.op->backward_products(kShape)), node.op->backward_flops(kShape))
        << node.name;
  }
}

TEST_F(StepProfileTest, RowsKnowWhatBoundsThem) {
  const StepProfile profile = Profile();
  for (const StepProfile::Row& row : profile.rows()) {
    const bool product = row.op == "linear" || row.op == "residual_linear" ||
                         row.op == "qkv_projection" || row.op == "lm_loss";
    EXPECT_EQ(row.bound, product                 ? Bound::kProducts
                         : row.op == "attention" ? Bound::kAttention
                                                 : Bound::kMemory)
        << row.name;
  }
}

TEST_F(StepProfileTest, BytesAreEachOperandOnce) {
  const StepProfile profile = Profile();
  const double tokens = kShape.tokens();
  // gate and up in, their product out.
  EXPECT_EQ(Find(profile, "swiglu", "forward").bytes, kLayers * 4 * tokens * 3 * kFfn);
  // x, W and y; 2 tokens hidden ffn a product and direction.
  EXPECT_EQ(Find(profile, "gate_up", "forward").bytes,
            kLayers * 4 * (tokens * kHidden + 2 * kFfn * kHidden + tokens * 2 * kFfn));
  EXPECT_EQ(Find(profile, "gate_up", "forward").flops, kLayers * 2 * tokens * kHidden * 2 * kFfn);
  // Rows of the table that are read and written.
  EXPECT_EQ(Find(profile, "embedding", "forward").bytes, 4 * 2 * tokens * kHidden);
}

TEST_F(StepProfileTest, AnUpdateMovesSevenNumbersAParameter) {
  const Schedule fused = Lower(graph_, KeepPlan(graph_, 2), kShape, ScheduleMode::kFusedUpdate);
  StepProfile profile(graph_);
  for (const Instr& instr : fused.instrs) profile.Add(fused, instr, 1);
  EXPECT_EQ(Find(profile, "optimizer", "update").bytes,
            static_cast<double>(7 * 4 * graph_.parameter_count()));
}

TEST_F(StepProfileTest, EveryRowHasALimitAndTheirSumsAreThoseOfTheRows) {
  StepProfile profile = Profile();
  MachineLimits(1).Apply(graph_, profile);
  double all = 0, products = 0;
  for (const StepProfile::Row& row : profile.rows()) {
    EXPECT_GT(row.limit_seconds, 0) << row.name << " " << row.work;
    all += row.limit_seconds;
    if (row.bound != Bound::kMemory) products += row.limit_seconds;
  }
  EXPECT_DOUBLE_EQ(profile.LimitSeconds(true), all);
  EXPECT_DOUBLE_EQ(profile.LimitSeconds(false), products);
}

}  // namespace
}  // namespace haversack
