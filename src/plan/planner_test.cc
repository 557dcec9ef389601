#include "plan/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/random.h"
#include "models/config.h"
#include "plan/milp.h"

namespace haversack {
namespace {

ModelConfig TinyConfig(int layers) {
  return ParseModelConfig({{"model_type", "llama"},
                           {"hidden_size", 64},
                           {"intermediate_size", 160},
                           {"num_hidden_layers", layers},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"vocab_size", 128}},
                          "test");
}

Graph GraphOf(int layers) {
  return BuildGraph(TinyConfig(layers), {.positions = 64, .loss_chunk = 32});
}

const BatchShape kShape = {.sequences = 2, .seq = 64};

// Costs in proportion to FLOPs: predictable, and every op costs something.
CostProfile FlopProfile(const Graph& graph) {
  CostProfile profile;
  const auto price = [&](const Plan& plan, const BlockChoice&) {
    const Schedule schedule = LowerWithoutOffsets(graph, plan, kShape, ScheduleMode::kTrain);
    for (const Instr& instr : schedule.instrs) {
      if (instr.node < 0) {
        profile.Set(graph, schedule, instr, 1e-9 * 8 * 64 * 128);
        continue;
      }
      const Op& op = *graph.nodes[instr.node].op;
      const double flops =
          instr.kind == InstrKind::kBackward ? op.backward_flops(kShape) : op.forward_flops(kShape);
      profile.Set(graph, schedule, instr, 1e-9 * flops);
    }
  };
  ForEachBlockPlan(graph, OpenValues(graph, ActionSet()), 2, price);
  return profile;
}

TEST(Choice, EqualsExhaustiveSearchOnSmallProblems) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const RandomStream random({.seed = seed});
    uint64_t n = 0;
    ChoiceProblem problem;
    problem.gap = 0;
    for (int i = 0; i < 5; ++i) {
      std::vector<ChoiceOption> options;
      for (int c = 0; c < 4; ++c) {
        const double stored = 10 + 90 * random.Uniform(n++);
        options.push_back({.cost = 1 + random.Uniform(n++),
                           .stored = stored,
                           .peaks = {stored + 50 * random.Uniform(n++), stored + 20}});
        ++n;
      }
      problem.groups.push_back(options);
    }
    problem.memory = 300;
    problem.final_peak = 40;
    double best = std::numeric_limits<double>::infinity();
    for (int code = 0; code < 1024; ++code) {
      double level = 0, cost = 0;
      bool fits = true;
      for (int i = 0, rest = code; i < 5; ++i, rest /= 4) {
        const ChoiceOption& option = problem.groups[i][rest % 4];
        for (const double peak : option.peaks) fits &= level + peak <= problem.memory;
        level += option.stored;
        cost += option.cost;
      }
      fits &= level + problem.final_peak <= problem.memory;
      if (fits) best = std::min(best, cost);
    }
    const auto choice = SolveChoice(problem);
    ASSERT_EQ(choice.has_value(), std::isfinite(best));
    if (!choice) continue;
    double cost = 0;
    for (int i = 0; i < 5; ++i) cost += problem.groups[i][(*choice)[i]].cost;
    EXPECT_NEAR(cost, best, 1e-9) << seed;
  }
}

TEST(Choice, WhatCannotFitHasNoAnswer) {
  ChoiceProblem problem;
  problem.groups = {{{.cost = 1, .stored = 10, .peaks = {20}}}};
  problem.memory = 15;
  EXPECT_FALSE(SolveChoice(problem).has_value());
}

TEST(BlockPlans, NoneIsBeatenInEveryRespectAndStoredBytesAddUp) {
  const Graph one = GraphOf(1);
  const BlockMenu menu =
      EnumerateBlockPlans(one, kShape, ScheduleMode::kTrain, ActionSet::Exact(), FlopProfile(one));
  ASSERT_GE(menu.plans.size(), 4u);
  for (const BlockPlan& a : menu.plans) {
    for (const BlockPlan& b : menu.plans) {
      const bool beaten = &a != &b && b.seconds <= a.seconds && b.stored <= a.stored &&
                          b.forward_peak <= a.forward_peak && b.backward_peak <= a.backward_peak;
      EXPECT_FALSE(beaten);
    }
  }
  // Six blocks that all run as one plan store six times its bytes, the output and the head aside.
  const Graph six = GraphOf(6);
  for (size_t c = 0; c < menu.plans.size(); ++c) {
    const Plan plan = ExpandBlockPlans(six, one, menu, std::vector<int>(6, static_cast<int>(c)), 2);
    int64_t kept = 0;
    for (const LiveBytes& live :
         SimulateMemory(LowerWithoutOffsets(six, plan, kShape, ScheduleMode::kTrain))) {
      kept = std::max(kept, live.kept);
    }
    const int64_t head = kShape.tokens() * (64 + 1) * static_cast<int64_t>(sizeof(float));
    EXPECT_EQ(kept, 6 * menu.plans[c].stored + head);
  }
}

// Invariant 7: more budget is never slower, and no plan passes its budget.
TEST(Planner, MoreBytesAreNeverSlowerAndNoPlanPassesItsBytes) {
  const Graph whole = GraphOf(8);
  const Graph one = GraphOf(1);
  const CostProfile profile = FlopProfile(one);
  Planner planner(whole, one, kShape, ScheduleMode::kTrain, ActionSet::Exact(), profile);
  const int64_t most = Lower(whole, KeepPlan(whole, 2), kShape, ScheduleMode::kTrain).arena_bytes;
  const int64_t least =
      Lower(whole, RecomputePlan(whole, 2), kShape, ScheduleMode::kTrain).arena_bytes;
  ASSERT_LT(least, most);
  double before = std::numeric_limits<double>::infinity();
  for (int step = 0; step <= 10; ++step) {
    const int64_t bytes = least + (most - least) * step / 10;
    const std::optional<Planner::Solution> solution = planner.Solve(bytes);
    ASSERT_TRUE(solution.has_value());
    EXPECT_LE(solution->schedule.arena_bytes, bytes);
    EXPECT_LE(solution->seconds, before) << step;
    before = solution->seconds;
  }
  EXPECT_EQ(planner.Solve(most)->plan.name, "keep");
  EXPECT_FALSE(planner.Solve(least / 2).has_value());
}

bool Encodes(const std::optional<Planner::Solution> solution) { return EncodesAny(solution->plan); }

// Between the least that encoded plans need and keeping everything, at any accuracy budget: never
// slower with more bytes or more noise, never above either.
TEST(Planner, EncodedPlansStayWithinBytesAndNoiseAndServeLessThanExactOnesCan) {
  const Graph whole = GraphOf(8);
  const Graph one = GraphOf(1);
  const CostProfile profile = FlopProfile(one);
  const NoiseTable noise = TypicalNoise(whole, one, ActionSet());
  Planner planner(whole, one, kShape, ScheduleMode::kTrain, ActionSet(), profile);
  const int64_t most = Lower(whole, KeepPlan(whole, 2), kShape, ScheduleMode::kTrain).arena_bytes;
  const int64_t exact =
      Lower(whole, RecomputePlan(whole, 2), kShape, ScheduleMode::kTrain).arena_bytes;
  const auto only_exact = [&](int64_t bytes) {
    const std::optional<Planner::Solution> solution = planner.Solve(bytes);
    return !solution || !Encodes(solution);
  };
  EXPECT_TRUE(only_exact(exact * 9 / 10));  // until there is a noise table
  std::vector<double> before(6, std::numeric_limits<double>::infinity());
  for (const std::optional<double> limit :
       {std::optional(1e-9), std::optional(1e-3), std::optional(1e-2), std::optional<double>()}) {
    planner.SetNoise(noise, limit);
    double slower = std::numeric_limits<double>::infinity();
    for (int step = 0; step <= 5; ++step) {
      const int64_t bytes = exact * 9 / 10 + (most - exact * 9 / 10) * step / 5;
      const std::optional<Planner::Solution> solution = planner.Solve(bytes);
      if (!solution) continue;
      EXPECT_LE(solution->schedule.arena_bytes, bytes);
      EXPECT_LE(solution->noise_share, limit.value_or(1));
      EXPECT_LE(solution->seconds, slower);
      // The program's answers are within its gap of the best.
      EXPECT_LE(solution->seconds, 1.01 * before[step]);
      slower = before[step] = solution->seconds;
    }
  }
  ASSERT_TRUE(planner.Solve(exact * 9 / 10).has_value());
  EXPECT_TRUE(Encodes(planner.Solve(exact * 9 / 10)));
  planner.SetNoise({}, 0.0);
  EXPECT_TRUE(only_exact(exact * 9 / 10));
  EXPECT_TRUE(only_exact((exact + most) / 2));
}

TEST(Undominated, KeepsTheSmallestPlanHoweverFewAreWanted) {
  const Graph one = GraphOf(1);
  const BlockMenu menu =
      EnumerateBlockPlans(one, kShape, ScheduleMode::kTrain, ActionSet(), FlopProfile(one));
  const std::vector<double> noise(menu.plans.size(), 0);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const BlockPlan& plan : menu.plans) least = std::min(least, plan.PeakOf(12));
  for (const size_t most : {1000, 30, 5}) {
    const std::vector<int> kept = Undominated(menu, noise, 12, most);
    EXPECT_LE(kept.size(), most);
    EXPECT_TRUE(
        std::ranges::any_of(kept, [&](int c) { return menu.plans[c].PeakOf(12) == least; }));
  }
}

TEST(OpenValues, QueriesAndKeysAreSensitiveAndTheResidualStreamKeepsOutliers) {
  const Graph one = GraphOf(1);
  for (const OpenValue& open : OpenValues(one, ActionSet())) {
    const Value& value = one.values[open.value];
    const bool qkv = value.kind() == "qkv";
    EXPECT_EQ(open.sensitive, qkv ? std::vector({true, true, false})
                                  : std::vector<bool>(value.pieces.size(), false))
        << value.name;
    const bool residual = value.kind() == "embedding" || value.kind() == "x_mid";
    for (const Action& action : open.actions) {
      if (action.ToText().starts_with("int8")) {
        EXPECT_EQ(action.codecs[0].outliers, residual ? 1 : 0) << value.name;
      }
      EXPECT_FALSE(qkv && action.ToText().starts_with("int4"));
    }
  }
}

TEST(Planner, SelectiveRecomputationBeatsAllOrNothingBetweenThem) {
  const Graph whole = GraphOf(8);
  const Graph one = GraphOf(1);
  const CostProfile profile = FlopProfile(one);
  Planner planner(whole, one, kShape, ScheduleMode::kTrain, ActionSet::Exact(), profile);
  const Schedule keep = Lower(whole, KeepPlan(whole, 2), kShape, ScheduleMode::kTrain);
  const Schedule recompute = Lower(whole, RecomputePlan(whole, 2), kShape, ScheduleMode::kTrain);
  const std::optional<Planner::Solution> middle =
      planner.Solve((keep.arena_bytes + recompute.arena_bytes) / 2);
  ASSERT_TRUE(middle.has_value());
  const double saved = profile.Seconds(whole, recompute) - middle->seconds;
  EXPECT_GT(saved, 0.5 * (profile.Seconds(whole, recompute) - profile.Seconds(whole, keep)));
}

}  // namespace
}  // namespace haversack
