#include "exec/executor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "exec/arena.h"
#include "exec/generator.h"
#include "models/tiny_model_test_util.h"
#include "schedule/plan.h"

namespace haversack {
namespace {

Graph TinyGraph(const std::string& model_type) {
  return BuildGraph(TinyConfig(model_type, 3), {.positions = 64, .loss_chunk = 24});
}

// Random tokens in documents of uneven length; a document's last token is not predicted.
struct RandomBatch {
  RandomBatch(const BatchShape& shape, uint64_t seed) {
    const RandomStream random({.seed = seed});
    const int64_t tokens = shape.tokens();
    for (int64_t t = 0; t < tokens; ++t) {
      const bool starts = t % shape.seq == 0 || random.Bits(2 * t) % 7 == 0;
      if (starts) boundaries.push_back(static_cast<int32_t>(t));
      positions.push_back(starts ? 0 : positions.back() + 1);
      ids.push_back(static_cast<int32_t>(random.Bits(2 * t + 1) % 64));
    }
    boundaries.push_back(static_cast<int32_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
      const bool last = t + 1 == tokens || positions[t + 1] == 0;
      targets.push_back(last ? -1 : ids[t + 1]);
      valid += last ? 0 : 1;
    }
  }
  std::vector<int32_t> ids, targets, positions, boundaries;
  int64_t valid = 0;
};

struct Outcome {
  double loss = 0;
  std::vector<float> grads;
  int64_t peak = 0;
};

std::vector<float> RandomWeights(const ParamLayout& layout) {
  std::vector<float> weights(layout.total);
  const RandomStream random({.seed = 5});
  for (int64_t i = 0; i < layout.total; ++i) weights[i] = 0.2f * random.Normal(i);
  return weights;
}

// Keys of stochastic rounding.
constexpr uint64_t kSeed = 7, kSample = 12;

// `between` runs after the last instruction before the loss, on the executor's region.
Outcome RunOnce(const Graph& graph, const Plan& plan, const BatchShape& shape,
                const RandomBatch& data,
                const std::function<void(const Schedule&, std::byte*)>& between = nullptr) {
  const ParamLayout layout(graph);
  std::vector<float> weights = RandomWeights(layout);
  Outcome outcome;
  outcome.grads.assign(layout.total, 0);
  const Schedule schedule = Lower(graph, plan, shape, ScheduleMode::kTrain);
  Arena arena(schedule.arena_bytes);
  ModelState state;
  state.weights = weights.data();
  state.grads = outcome.grads.data();
  std::byte* region = arena.Take("schedule", schedule.arena_bytes);
  Executor executor(graph, layout, state, region, schedule.arena_bytes);
  executor.set_poison(true);
  if (between) {
    executor.set_observer([&](const Schedule&, const Instr& instr, double) {
      const bool last = instr.node == static_cast<int>(graph.nodes.size()) - 2;
      if (last && instr.kind == InstrKind::kForward) between(schedule, region);
    });
  }
  const MicroBatch batch = {.ids = data.ids,
                            .targets = data.targets,
                            .positions = data.positions,
                            .boundaries = data.boundaries,
                            .loss_scale = 1.0f / static_cast<float>(data.valid),
                            .loss_sum = &outcome.loss,
                            .seed = kSeed,
                            .sample = kSample};
  executor.Run(schedule, batch, false);
  outcome.peak = executor.peak_bytes();
  EXPECT_EQ(outcome.peak, schedule.arena_bytes) << plan.name;
  return outcome;
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

class ExecutorPlans : public testing::TestWithParam<const char*> {};

// Invariants 1 and 2: the arena's measured peak is the predicted one, and what is kept or
// recomputed changes no bit. Buffers hold NaN outside their lifetimes.
TEST_P(ExecutorPlans, EveryKeepOrRecomputePlanGivesTheSameBits) {
  const Graph graph = TinyGraph(GetParam());
  for (const BatchShape shape : {BatchShape{1, 17}, BatchShape{3, 32}}) {
    const RandomBatch data(shape, 11);
    const Outcome keep = RunOnce(graph, KeepPlan(graph, shape.sequences), shape, data);
    const auto same = [&](const Outcome& other) {
      return other.loss == keep.loss && std::memcmp(other.grads.data(), keep.grads.data(),
                                                    keep.grads.size() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(same(RunOnce(graph, RecomputePlan(graph, shape.sequences), shape, data)));
    for (uint64_t seed = 0; seed < 20; ++seed) {
      EXPECT_TRUE(same(RunOnce(graph, RandomPlan(graph, seed), shape, data))) << "plan " << seed;
    }
  }
}

// Any action for each value, made consistent.
Plan RandomEncodedPlan(const Graph& graph, uint64_t seed) {
  const std::vector<std::string> codecs = {"bf16", "int8", "int8/32+o2", "int4/32+o1", "int4+sr"};
  Plan plan = KeepPlan(graph, 1);
  const RandomStream random({.seed = seed});
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const auto v = static_cast<ValueId>(i);
    Action action;
    if (const uint32_t pick = random.Bits(8 * i) % 4; pick == 0) {
      action = Action::Recompute();
    } else if (pick > 1) {
      action = Action::Encode({});
      for (size_t p = 0; p < graph.values[i].pieces.size(); ++p) {
        const CodecSpec codec =
            ParseCodec(codecs[random.Bits(8 * i + 1 + p) % codecs.size()], "test");
        action.codecs.push_back(codec);
        std::vector<int32_t> columns;
        for (int c = 0; c < codec.outliers; ++c) columns.push_back(3 * c + 1);
        action.outliers.push_back(columns);
      }
    }
    if (WhyIllegal(graph, v, action).empty()) plan.actions[i] = action;
  }
  for (size_t v = 0; v < graph.values.size() && !WhyInconsistent(graph, plan).empty(); ++v) {
    if (graph.values[v].kind() == "attn_out") plan.actions[v] = Action::Recompute();
  }
  EXPECT_EQ(WhyInconsistent(graph, plan), "");
  return plan;
}

// Replaces what the forward pass left of each encoded value by what its codec makes of it.
void EncodeInPlace(const Graph& graph, const Plan& plan, const Schedule& schedule,
                   std::byte* region) {
  const int64_t tokens = schedule.shape.tokens();
  for (const Buffer& buffer : schedule.buffers) {
    if (!buffer.kept || buffer.value < 0) continue;
    const Action& action = plan.actions[buffer.value];
    if (action.kind != Action::Kind::kEncode) continue;
    auto* x = reinterpret_cast<float*>(region + buffer.offset);
    const Value& value = graph.values[buffer.value];
    for (size_t p = 0; p < action.codecs.size(); ++p) {
      const EncodedShape shape = {action.codecs[p], tokens, value.pieces[p].cols,
                                  action.outliers[p]};
      std::vector<std::byte> bytes(EncodedBytes(shape.codec, tokens, shape.cols) + 64);
      std::byte* out = bytes.data() + 64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64;
      Encode(shape, x, value.cols,
             {.seed = kSeed,
              .purpose = RandomPurpose::kRounding,
              .layer = static_cast<uint32_t>(buffer.value * kMaxOperands + p),
              .step = kSample},
             out);
      Decode(shape, out, x, value.cols);
      x += shape.cols;
    }
  }
}

// An encoded value is what its codec gives back, wherever it is read and by whatever path (decoded,
// tile by tile, through what is computed again from it), and nothing else changes; the arena's peak
// is the predicted one (RunOnce), and no buffer is read outside its lifetime.
TEST_P(ExecutorPlans, EncodingAValueEqualsReplacingWhatWasKept) {
  const Graph graph = TinyGraph(GetParam());
  for (const BatchShape shape : {BatchShape{1, 17}, BatchShape{3, 32}}) {
    const RandomBatch data(shape, 11);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Plan plan = RandomEncodedPlan(graph, seed);
      Plan kept = plan;
      for (Action& action : kept.actions) {
        if (action.kind == Action::Kind::kEncode) action = {};
      }
      const Outcome want =
          RunOnce(graph, kept, shape, data, [&](const Schedule& schedule, std::byte* region) {
            EncodeInPlace(graph, plan, schedule, region);
          });
      const Outcome got = RunOnce(graph, plan, shape, data);
      EXPECT_EQ(got.loss, want.loss);
      EXPECT_TRUE(got.grads == want.grads) << "plan " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExecutorPlans,
                         testing::Values("llama", "qwen2", "qwen3", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Executor, ResultsDoNotDependOnTheNumberOfThreads) {
  const Graph graph = TinyGraph("llama");
  const BatchShape shape = {.sequences = 3, .seq = 40};
  const RandomBatch data(shape, 4);
  const int before = NumThreads();
  SetNumThreads(1);
  const Outcome one = RunOnce(graph, KeepPlan(graph, 3), shape, data);
  SetNumThreads(2);
  const Outcome two = RunOnce(graph, KeepPlan(graph, 3), shape, data);
  SetNumThreads(before);
  EXPECT_EQ(one.loss, two.loss);
  EXPECT_EQ(one.grads, two.grads);
}

// Invariant 5: a batch split into micro-batches has the whole batch's gradient, to rounding.
TEST(Executor, SplitBatchEqualsTheWhole) {
  const Graph graph = TinyGraph("llama");
  const ParamLayout layout(graph);
  const BatchShape whole = {.sequences = 4, .seq = 16};
  const RandomBatch data(whole, 9);
  const Outcome want = RunOnce(graph, KeepPlan(graph, 4), whole, data);

  std::vector<float> weights = RandomWeights(layout);
  std::vector<float> grads(layout.total);
  const Schedule schedule =
      Lower(graph, KeepPlan(graph, 1), {.sequences = 1, .seq = 16}, ScheduleMode::kTrain);
  Arena arena(schedule.arena_bytes);
  ModelState state;
  state.weights = weights.data();
  state.grads = grads.data();
  Executor executor(graph, layout, state, arena.Take("schedule", schedule.arena_bytes),
                    schedule.arena_bytes);
  double loss = 0;
  for (int s = 0; s < 4; ++s) {
    const auto part = [&](const std::vector<int32_t>& all) {
      return std::span(all).subspan(s * 16, 16);
    };
    std::vector<int32_t> boundaries;
    for (const int32_t b : data.boundaries) {
      if (b >= s * 16 && b <= (s + 1) * 16) boundaries.push_back(b - s * 16);
    }
    const MicroBatch batch = {.ids = part(data.ids),
                              .targets = part(data.targets),
                              .positions = part(data.positions),
                              .boundaries = boundaries,
                              .loss_scale = 1.0f / static_cast<float>(data.valid),
                              .loss_sum = &loss};
    executor.Run(schedule, batch, s > 0);
  }
  EXPECT_NEAR(loss, want.loss, 1e-6 * want.loss);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < layout.total; ++i) {
    error += (grads[i] - want.grads[i]) * (grads[i] - want.grads[i]);
    norm += want.grads[i] * want.grads[i];
  }
  EXPECT_LT(error, 1e-10 * norm);
}

TEST(Generator, CachedLogitsEqualThoseOfTheWholeSequence) {
  for (const char* family : {"llama", "qwen3", "gpt2"}) {
    const Graph graph = TinyGraph(family);
    const ParamLayout layout(graph);
    std::vector<float> weights = RandomWeights(layout);
    ModelState state;
    state.weights = weights.data();
    const RandomBatch data({.sequences = 1, .seq = 24}, 3);
    Generator step_by_step(graph, layout, state, 24);
    for (size_t n = 1; n <= 24; ++n) {
      const auto cached = step_by_step.Feed(std::span(data.ids).subspan(n - 1, 1));
      Generator at_once(graph, layout, state, 24);
      const auto whole = at_once.Feed(std::span(data.ids).first(n));
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_NEAR(cached[i], whole[i], 2e-5f * (1 + std::abs(whole[i]))) << family << n;
      }
    }
  }
}

}  // namespace
}  // namespace haversack
