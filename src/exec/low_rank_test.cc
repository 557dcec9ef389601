// Projected gradients, run: invariants of the executor on graphs with projections.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "exec/arena.h"
#include "exec/executor.h"
#include "models/tiny_model_test_util.h"
#include "schedule/plan.h"

namespace haversack {
namespace {

constexpr BatchShape kShape = {.sequences = 2, .seq = 24};

Graph Build(const std::string& model_type, const LowRankOptions& low_rank,
            ComputeType compute = ComputeType::kF32) {
  return BuildGraph(TinyConfig(model_type, 2),
                    {.positions = 64, .loss_chunk = 24, .compute = compute, .low_rank = low_rank});
}

LowRankOptions Rank(LowRankMethod method, int64_t rank) {
  return {.method = method, .rank = rank, .seed = 21};
}

struct Data {
  explicit Data(const BatchShape& shape) {
    const RandomStream random({.seed = 11});
    for (int64_t t = 0; t < shape.tokens(); ++t) {
      if (t % shape.seq == 0) boundaries.push_back(static_cast<int32_t>(t));
      positions.push_back(static_cast<int32_t>(t % shape.seq));
      ids.push_back(static_cast<int32_t>(random.Bits(2 * t) % 64));
      targets.push_back(static_cast<int32_t>(random.Bits(2 * t + 1) % 64));
    }
    boundaries.push_back(static_cast<int32_t>(shape.tokens()));
  }
  MicroBatch View(double* loss) const {
    return {.ids = ids,
            .targets = targets,
            .positions = positions,
            .boundaries = boundaries,
            .loss_scale = 1.0f / 48,
            .loss_sum = loss};
  }
  std::vector<int32_t> ids, targets, positions, boundaries;
};

// The gradients of one run, and the basis that it was made with.
struct Outcome {
  double loss = 0;
  std::vector<float> grads, basis;
  std::map<int, int> refreshed;  // projection: how often
};

constexpr int64_t kEpoch = 3;

Outcome RunOnce(const Graph& graph, const Plan& plan, ScheduleMode mode = ScheduleMode::kTrain) {
  SetNumThreads(1);  // the sizes are tiny
  const ParamLayout layout(graph);
  const Schedule schedule = Lower(graph, plan, kShape, mode);
  Arena arena(schedule.arena_bytes);
  std::byte* region = arena.Take("schedule", schedule.arena_bytes);
  std::vector<float> weights(layout.total), workspace(layout.workspace_total + 16);
  const RandomStream random({.seed = 5});
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.2f * random.Normal(i);
  Outcome outcome;
  outcome.grads.resize(layout.grad_total);
  outcome.basis.resize(layout.basis_total);
  ModelState state;
  state.weights = weights.data();
  if (mode == ScheduleMode::kTrain) state.grads = outcome.grads.data();
  state.basis = outcome.basis.data();
  state.workspace = workspace.data();
  Executor executor(graph, layout, state, region, schedule.arena_bytes);
  executor.set_poison(true);
  executor.set_projection_epoch(kEpoch);
  const Data data(kShape);
  const auto update = [&](ParamId p, float* grad) {
    std::copy_n(grad, graph.params[p].gradient_count(),
                outcome.grads.data() + layout.grad_offset[p]);
  };
  const auto refresh = [&](int index, const float* x, int64_t tokens) {
    ++outcome.refreshed[index];
    RefreshBasis(graph.projections[index].spec, kEpoch, x, tokens, 4, true,
                 outcome.basis.data() + layout.basis_offset[index], workspace.data());
  };
  executor.Run(schedule, data.View(&outcome.loss), false, update, refresh);
  EXPECT_EQ(executor.peak_bytes(), schedule.arena_bytes);
  return outcome;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Case {
  const char* family;
  LowRankMethod method;
};

class LowRankRun : public testing::TestWithParam<Case> {};

// Forward, input gradients and bias gradients are exact, so every gradient of an unprojected
// parameter keeps its bits; a projected one is the full gradient times P.
TEST_P(LowRankRun, OnlyProjectedWeightsGradientsChangeAndThoseAreTheFullOnesTimesP) {
  const Graph full = Build(GetParam().family, {});
  const Graph low = Build(GetParam().family, Rank(GetParam().method, 12));
  const ParamLayout full_layout(full), low_layout(low);
  const Outcome exact = RunOnce(full, KeepPlan(full, 2)),
                projected = RunOnce(low, KeepPlan(low, 2));
  EXPECT_EQ(exact.loss, projected.loss);
  EXPECT_TRUE(exact.refreshed.empty());
  EXPECT_EQ(projected.refreshed.size(), 6u);
  for (size_t p = 0; p < full.params.size(); ++p) {
    const Param& param = low.params[p];
    const float* g = exact.grads.data() + full_layout.grad_offset[p];
    const float* got = projected.grads.data() + low_layout.grad_offset[p];
    if (param.projection < 0) {
      EXPECT_EQ(std::memcmp(g, got, param.count() * sizeof(float)), 0) << param.name;
      continue;
    }
    const ProjectionSpec& spec = low.projections[param.projection].spec;
    std::vector<float> matrix(spec.cols * spec.rank), scratch(spec.tile_scratch());
    MakeProjection(spec, kEpoch, projected.basis.data() + low_layout.basis_offset[param.projection],
                   matrix.data(), scratch.data());
    double scale = 0, error = 0;
    for (int64_t i = 0; i < param.rows; ++i) {
      for (int64_t k = 0; k < spec.rank; ++k) {
        double expected = 0;
        for (int64_t c = 0; c < spec.cols; ++c) {
          expected += double{g[i * spec.cols + c]} * matrix[c * spec.rank + k];
        }
        scale = std::max(scale, std::abs(expected));
        error = std::max(error, std::abs(expected - got[i * spec.rank + k]));
      }
    }
    EXPECT_GT(scale, 0) << param.name;
    // Two orders of summation over 48 tokens and 48 columns in f32.
    EXPECT_LT(error, 2e-5 * scale) << param.name;
  }
}

TEST_P(LowRankRun, EveryPlanGivesTheSameBits) {
  const Graph graph = Build(GetParam().family, Rank(GetParam().method, 12));
  const Outcome keep = RunOnce(graph, KeepPlan(graph, 2));
  const auto expect_same = [&](const Outcome& other) {
    EXPECT_EQ(other.loss, keep.loss);
    EXPECT_TRUE(SameBits(other.grads, keep.grads));
    EXPECT_TRUE(SameBits(other.basis, keep.basis));
    for (const auto& [index, times] : other.refreshed) EXPECT_EQ(times, 1) << index;
  };
  expect_same(RunOnce(graph, RecomputePlan(graph, 2)));
  expect_same(RunOnce(graph, KeepPlan(graph, 2), ScheduleMode::kFusedUpdate));
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Plan plan = KeepPlan(graph, 2);
    const RandomStream random({.seed = seed});
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const Action action = random.Bits(v) % 2 == 0 ? Action::Recompute() : Action{};
      if (WhyIllegal(graph, static_cast<ValueId>(v), action).empty()) plan.actions[v] = action;
    }
    SCOPED_TRACE(seed);
    expect_same(RunOnce(graph, plan));
  }
}

TEST_P(LowRankRun, EvaluationProjectsNothing) {
  const Graph graph = Build(GetParam().family, Rank(GetParam().method, 12));
  const Schedule schedule = Lower(graph, KeepPlan(graph, 2), kShape, ScheduleMode::kEvaluate);
  for (const Instr& instr : schedule.instrs) {
    EXPECT_LT(graph.nodes[instr.node].op->projection(), 0) << graph.nodes[instr.node].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LowRankRun,
                         testing::Values(Case{"llama", LowRankMethod::kCompact},
                                         Case{"llama", LowRankMethod::kPracLowRank},
                                         Case{"qwen3", LowRankMethod::kCompact},
                                         Case{"gpt2", LowRankMethod::kCompact},
                                         Case{"gpt2", LowRankMethod::kPrac}));

TEST(LowRankMemory, TheKeepPlanStoresNoProjection) {
  const Graph graph = Build("llama", Rank(LowRankMethod::kCompact, 8));
  const Plan plan = KeepPlan(graph, 1);
  for (const ProjectedValue& value : graph.projections) {
    EXPECT_EQ(plan.actions[value.z].kind, Action::Kind::kRecompute);
    EXPECT_EQ(WhyIllegal(graph, value.z, {}), "");
    EXPECT_EQ(WhyIllegal(graph, value.x, {}), "");
    EXPECT_FALSE(graph.values[value.z].differentiable);
  }
}

TEST(LowRankMemory, StoredProjectionsCostTheirColumnsAndRebuiltOnesNothing) {
  const Graph full = Build("llama", {});
  const Graph low = Build("llama", Rank(LowRankMethod::kCompact, 12));
  const auto kept = [](const Graph& graph, const Plan& plan) {
    int64_t bytes = 0;
    for (const Buffer& buffer : Lower(graph, plan, kShape, ScheduleMode::kTrain).buffers) {
      if (buffer.kept) bytes += buffer.bytes;
    }
    return bytes;
  };
  const int64_t exact = kept(full, KeepPlan(full, 2));
  Plan plan = KeepPlan(low, 2);
  EXPECT_EQ(kept(low, plan), exact);
  for (const ProjectedValue& value : low.projections) plan.actions[value.z] = {};
  EXPECT_EQ(kept(low, plan), exact + 6 * kShape.tokens() * 12 * 4);
}

TEST(LowRankMemory, StateFollowsTheClosedFormAndFallsWithTheRank) {
  // Per layer: q, k, v [64, 32], gate and up [96, 32], down [32, 48].
  constexpr int64_t kProjected = 64 * 32 + 96 * 32 + 32 * 48;
  const Graph full = Build("llama", {});
  const int64_t all = ParamLayout(full).grad_total;
  int64_t before = all;
  for (const int64_t rank : {16, 8, 4}) {
    const Graph graph = Build("llama", Rank(LowRankMethod::kCompact, rank));
    const int64_t expected = all - 2 * (kProjected - rank * (64 + 96 + 32));
    const ParamLayout layout(graph);
    EXPECT_EQ(layout.total, ParamLayout(full).total);
    EXPECT_EQ(layout.grad_total, expected);
    EXPECT_EQ(MomentLayout(graph, MomentType::kF32).total, expected);
    EXPECT_EQ(layout.basis_total, 0);
    EXPECT_LT(expected, before);
    before = expected;
  }
  // PRAC as published keeps full moments; both variants store Q1 and T.
  const Graph prac = Build("llama", Rank(LowRankMethod::kPrac, 16));
  EXPECT_EQ(MomentLayout(prac, MomentType::kF32).total, all);
  EXPECT_EQ(ParamLayout(prac).basis_total, 2 * (2 * (32 * 8 + 8 * 8) + (48 * 8 + 8 * 8)));
  const Graph low_rank = Build("llama", Rank(LowRankMethod::kPracLowRank, 16));
  EXPECT_EQ(MomentLayout(low_rank, MomentType::kF32).total, all - 2 * (kProjected - 16 * 192));
}

}  // namespace
}  // namespace haversack
