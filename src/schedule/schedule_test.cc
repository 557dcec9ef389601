#include "schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "models/tiny_model_test_util.h"
#include "schedule/plan.h"

namespace haversack {
namespace {

Graph TinyGraph(const std::string& model_type, int layers = 3) {
  return BuildGraph(TinyConfig(model_type, layers, 48, /*tied=*/false),
                    {.positions = 64, .loss_chunk = 8});
}

Plan RandomPlan(const Graph& graph, uint64_t seed) {
  Plan plan = KeepPlan(graph, 1);
  const RandomStream random({.seed = seed});
  for (size_t v = 0; v < graph.values.size(); ++v) {
    Action action;
    if (random.Bits(v) % 2 == 0) action.kind = Action::Kind::kRecompute;
    if (WhyIllegal(graph, static_cast<ValueId>(v), action).empty()) plan.actions[v] = action;
  }
  return plan;
}

void ExpectSoundPacking(const Schedule& schedule) {
  for (size_t a = 0; a < schedule.buffers.size(); ++a) {
    const Buffer& x = schedule.buffers[a];
    EXPECT_EQ(x.offset % kBufferAlignment, 0);
    EXPECT_LE(x.offset + x.bytes, schedule.arena_bytes);
    for (size_t b = a + 1; b < schedule.buffers.size(); ++b) {
      const Buffer& y = schedule.buffers[b];
      const bool at_once = x.first <= y.last && y.first <= x.last;
      const bool share = x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
      EXPECT_FALSE(at_once && share) << x.name << " and " << y.name;
    }
  }
}

TEST(Schedule, BuffersThatLiveAtOnceNeverShareAnAddress) {
  for (const char* family : {"llama", "qwen3", "gpt2"}) {
    const Graph graph = TinyGraph(family);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Schedule schedule =
          Lower(graph, RandomPlan(graph, seed), {.sequences = 2, .seq = 16}, ScheduleMode::kTrain);
      ExpectSoundPacking(schedule);
      EXPECT_GE(schedule.arena_bytes, schedule.live_bytes);
    }
  }
}

TEST(Schedule, PackingStaysNearTheSumOfLiveBytes) {
  const Graph graph = TinyGraph("llama", 12);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Schedule schedule =
        Lower(graph, RandomPlan(graph, seed), {.sequences = 4, .seq = 32}, ScheduleMode::kTrain);
    EXPECT_LE(schedule.arena_bytes, schedule.live_bytes * 21 / 20) << seed;
  }
}

TEST(Schedule, RecomputingStoresLessThanKeepingAndEvaluationLeast) {
  const Graph graph = TinyGraph("llama", 6);
  const BatchShape shape = {.sequences = 2, .seq = 64};
  const auto bytes = [&](const Plan& plan, ScheduleMode mode) {
    return Lower(graph, plan, shape, mode).arena_bytes;
  };
  const Plan keep = KeepPlan(graph, 2);
  const Plan recompute = RecomputePlan(graph, 2);
  EXPECT_LT(bytes(recompute, ScheduleMode::kTrain), bytes(keep, ScheduleMode::kTrain));
  EXPECT_LT(bytes(keep, ScheduleMode::kEvaluate), bytes(recompute, ScheduleMode::kTrain));
}

// Keep stores, a layer and token: x, qkv, attention out, log-sum-exp, x_mid, gate_up and two rstd.
TEST(Schedule, KeptBytesOfTheKeepPlanEqualTheClosedForm) {
  const int layers = 5;
  const Graph graph = TinyGraph("llama", layers);
  const Schedule schedule =
      Lower(graph, KeepPlan(graph, 1), {.sequences = 1, .seq = 16}, ScheduleMode::kTrain);
  int64_t most = 0;
  for (const LiveBytes& live : SimulateMemory(schedule)) most = std::max(most, live.kept);
  const int64_t floats_a_layer = 32 + (4 + 2 * 2) * 8 + 32 + 4 + 32 + 2 * 48 + 1 + 1;
  const int64_t outside = 32 + 1;  // the last block's output and the final norm's rstd
  EXPECT_EQ(most, (layers * floats_a_layer + outside) * 16 * static_cast<int64_t>(sizeof(float)));
}

TEST(Schedule, KeepPlanRunsNoProductAndNoAttentionAgain) {
  const Graph graph = TinyGraph("llama");
  const Schedule schedule =
      Lower(graph, KeepPlan(graph, 1), {.sequences = 1, .seq = 16}, ScheduleMode::kTrain);
  for (const Instr& instr : schedule.instrs) {
    if (instr.kind == InstrKind::kRecompute) {
      EXPECT_TRUE(graph.nodes[instr.node].op->cheap()) << graph.nodes[instr.node].name;
    }
  }
}

TEST(Schedule, RecomputePlanRunsTheLastProjectionOfABlockOnce) {
  const Graph graph = TinyGraph("llama");
  const Schedule schedule =
      Lower(graph, RecomputePlan(graph, 1), {.sequences = 1, .seq = 16}, ScheduleMode::kTrain);
  for (const Instr& instr : schedule.instrs) {
    if (instr.kind != InstrKind::kRecompute) continue;
    EXPECT_FALSE(graph.nodes[instr.node].name.ends_with(".x")) << "down projection run again";
  }
}

TEST(Schedule, FusedUpdateUpdatesEachParameterOnceAfterItsLastGradient) {
  const Graph graph = TinyGraph("llama");
  const Schedule schedule =
      Lower(graph, KeepPlan(graph, 1), {.sequences = 1, .seq = 16}, ScheduleMode::kFusedUpdate);
  std::vector<int> updated(graph.params.size(), 0);
  for (const Instr& instr : schedule.instrs) {
    if (instr.kind == InstrKind::kUpdate) {
      ++updated[instr.param];
      continue;
    }
    for (const ParamId p : graph.nodes[instr.node].params) {
      EXPECT_EQ(updated[p], 0) << graph.params[p].name << " is used after its update";
    }
  }
  EXPECT_EQ(updated, std::vector<int>(graph.params.size(), 1));
}

TEST(Plan, TravelsAsJson) {
  const Graph graph = TinyGraph("llama");
  const Plan plan = RandomPlan(graph, 3);
  EXPECT_EQ(PlanFromJson(graph, PlanToJson(graph, plan), "test").actions, plan.actions);
}

TEST(Plan, PatternsAndDefaultsAreApplied) {
  const Graph graph = TinyGraph("llama");
  const Plan plan = PlanFromJson(
      graph, {{"default", "keep"}, {"values", {{"blocks.*.gate_up", "recompute"}}}}, "test");
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind() == "gate_up") {
      EXPECT_EQ(plan.actions[v].ToText(), "recompute");
    }
    if (graph.values[v].kind() == "qkv") {
      EXPECT_EQ(plan.actions[v].ToText(), "keep");
    }
  }
}

TEST(Plan, RefusesWhatCannotBe) {
  const Graph graph = TinyGraph("llama");
  const nlohmann::json bad[] = {
      {{"values", {{"blocks.0.nonsense", "keep"}}}},
      {{"values", {{"blocks.0.qkv", "shrink"}}}},
      {{"values", {{"blocks.0.x", "recompute"}}}},  // a block's input
      {{"values", {{"blocks.0.attn_out.lse", "recompute"}}}},
      {{"default", 3}},
      {{"surprise", true}},
      nlohmann::json::array(),
  };
  for (const nlohmann::json& json : bad) {
    EXPECT_THROW(PlanFromJson(graph, json, "plan.json"), UserError) << json;
  }
}

}  // namespace
}  // namespace haversack
