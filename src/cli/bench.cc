#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/machine.h"
#include "base/random.h"
#include "base/threads.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "exec/arena.h"
#include "exec/machine_limits.h"
#include "exec/step_profile.h"
#include "io/model.h"
#include "io/model_dir.h"
#include "train/run_plan.h"

namespace haversack {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Random tokens, one document a sequence, every next token predicted.
struct RandomTokens {
  RandomTokens(const BatchShape& shape, int64_t vocab, uint64_t seed) {
    const RandomStream random({.seed = seed});
    for (int64_t t = 0; t < shape.tokens(); ++t) {
      if (t % shape.seq == 0) boundaries.push_back(static_cast<int32_t>(t));
      positions.push_back(static_cast<int32_t>(t % shape.seq));
      ids.push_back(static_cast<int32_t>(random.Bits(t) % static_cast<uint64_t>(vocab)));
    }
    boundaries.push_back(static_cast<int32_t>(shape.tokens()));
    targets = ids;
    std::rotate(targets.begin(), targets.begin() + 1, targets.end());
  }
  std::vector<int32_t> ids, targets, positions, boundaries;
};

struct MeasuredStep {
  StepProfile profile;
  double seconds = 0;
};

// Optimizer steps as training takes them, on random tokens.
class StepBench {
 public:
  StepBench(const TrainOptions& options, const Model& model, const RunPlan& plan)
      : options_(options),
        model_(model),
        schedule_(plan.chosen.schedule),
        micro_batches_(options.batch / plan.chosen.plan.micro_batch),
        tokens_(schedule_.shape, model.config.vocab, options.seed),
        moments_(model.graph, options.moments),
        arena_(plan.chosen.arena_bytes()) {
    state_ = TakeModelState(arena_, model.layout, &moments_, !options.fused_update);
    std::byte* region = arena_.Take("schedule", schedule_.arena_bytes);
    arena_.FaultIn(0, arena_.bytes());
    if (options.random_init) {
      InitWeights(model.graph, model.layout, options.seed, state_.weights);
    } else {
      LoadWeights(model.graph, model.layout, *model.files, state_.weights);
    }
    executor_.emplace(model.graph, model.layout, state_, region, schedule_.arena_bytes);
    optimizer_.emplace(model.graph, model.layout, moments_, state_, options.adamw,
                       options.projections());
  }

  MeasuredStep Step() {
    MeasuredStep step{.profile = StepProfile(model_.graph)};
    executor_->set_observer([&](const Schedule& schedule, const Instr& instr, double seconds) {
      step.profile.Add(schedule, instr, seconds);
    });
    const auto start = Clock::now();
    optimizer_->Begin(++steps_, options_.lr, 1);
    double loss = 0;
    const MicroBatch batch = {
        .ids = tokens_.ids,
        .targets = tokens_.targets,
        .positions = tokens_.positions,
        .boundaries = tokens_.boundaries,
        .loss_scale = 1.0f / static_cast<float>(options_.batch * options_.seq),
        .loss_sum = &loss};
    for (int64_t i = 0; i < micro_batches_; ++i) {
      executor_->Run(
          schedule_, batch, i > 0,
          [&](ParamId param, float* grad) { optimizer_->Update(param, grad); },
          steps_ > 1 || i > 0
              ? Executor::RefreshProjection()
              : [&](int index, const float* x,
                    int64_t tokens) { optimizer_->RefreshProjection(index, -1, 0, x, tokens); });
    }
    if (!options_.fused_update) Update(step.profile);
    step.seconds = SecondsSince(start);
    return step;
  }

 private:
  void Update(StepProfile& profile) {
    const auto bytes = static_cast<double>(model_.layout.grad_bytes());
    auto start = Clock::now();
    const double norm = GradientNorm(model_.layout, state_.grads);
    profile.AddMemoryWork("gradients", "norm", bytes, SecondsSince(start));
    start = Clock::now();
    optimizer_->Begin(steps_, options_.lr, ClipFactor(norm, options_.clip));
    optimizer_->UpdateAll();
    // Weights and two moments are read and written, gradients are read.
    const double moved = bytes + 2 * static_cast<double>(model_.layout.bytes()) +
                         4 * static_cast<double>(moments_.bytes());
    profile.AddMemoryWork("optimizer", "update", moved, SecondsSince(start));
  }

  const TrainOptions& options_;
  const Model& model_;
  const Schedule& schedule_;
  int64_t micro_batches_;
  RandomTokens tokens_;
  MomentLayout moments_;
  Arena arena_;
  ModelState state_;
  std::optional<Executor> executor_;
  std::optional<AdamWOptimizer> optimizer_;
  int64_t steps_ = 0;
};

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

nlohmann::ordered_json RowToJson(const StepProfile::Row& row, double step_seconds) {
  return {{"name", row.name},
          {"op", row.op},
          {"work", row.work},
          {"bound", ToText(row.bound)},
          {"count", row.count},
          {"seconds", row.seconds},
          {"share", Share(row.seconds, step_seconds)},
          {"gflops", Share(row.flops, row.seconds) * 1e-9},
          {"gb_per_s", Share(row.bytes, row.seconds) * 1e-9},
          {"limit_seconds", row.limit_seconds},
          {"of_limit", Share(row.limit_seconds, row.seconds)}};
}

nlohmann::ordered_json ToJson(const TrainOptions& options, const RunPlan& plan,
                              const MeasuredStep& step) {
  const double tokens = static_cast<double>(options.batch * options.seq);
  const double limit = step.profile.LimitSeconds(/*memory_too=*/false);
  const double whole_limit = step.profile.LimitSeconds(/*memory_too=*/true);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const StepProfile::Row& row : step.profile.rows()) {
    rows.push_back(RowToJson(row, step.seconds));
  }
  return {{"cpu", CpuModel()},
          {"isa", CpuIsa()},
          {"threads", NumThreads()},
          {"compute", ToText(options.compute)},
          {"model", options.model},
          {"batch", options.batch},
          {"seq", options.seq},
          {"plan", plan.chosen.plan.name},
          {"micro_batch", plan.chosen.plan.micro_batch},
          {"step_seconds", step.seconds},
          {"tokens_per_s", tokens / step.seconds},
          {"limit_seconds", limit},
          {"of_limit", limit / step.seconds},
          {"limit_seconds_with_memory", whole_limit},
          {"of_limit_with_memory", whole_limit / step.seconds},
          {"between_ops_seconds", step.seconds - step.profile.seconds()},
          {"rows", rows}};
}

void PrintRow(const StepProfile::Row& row, double step_seconds) {
  const bool memory = row.bound == Bound::kMemory;
  const double rate = Share(memory ? row.bytes : row.flops, row.seconds) * 1e-9;
  fmt::print("  {:<12} {:<16} {:<10} {:>6} {:>9.4f} {:>6.1f}% {:>8.1f} {:<7} {:>5.0f}%\n", row.name,
             row.op, row.work, row.count, row.seconds, 100 * Share(row.seconds, step_seconds), rate,
             memory ? "GB/s" : "GFLOP/s", 100 * Share(row.limit_seconds, row.seconds));
}

void PrintTable(const TrainOptions& options, const RunPlan& plan, const MeasuredStep& step) {
  fmt::print("{} ({}), {} threads, {}\n", CpuModel(), CpuIsa(), NumThreads(),
             ToText(options.compute));
  fmt::print("{} x {} tokens, {}, micro-batch {}: {:.3f} s, {:.0f} tokens/s\n\n", options.batch,
             options.seq, plan.chosen.plan.name, plan.chosen.plan.micro_batch, step.seconds,
             static_cast<double>(options.batch * options.seq) / step.seconds);
  fmt::print("  {:<12} {:<16} {:<10} {:>6} {:>9} {:>7} {:>16} {:>6}\n", "where", "op", "work",
             "count", "seconds", "share", "rate", "limit");
  std::vector<const StepProfile::Row*> rows;
  for (const StepProfile::Row& row : step.profile.rows()) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto* a, const auto* b) { return a->seconds > b->seconds; });
  for (const StepProfile::Row* row : rows) PrintRow(*row, step.seconds);
  const double between = step.seconds - step.profile.seconds();
  fmt::print("  {:<12} {:<16} {:<10} {:>6} {:>9.4f} {:>6.1f}%\n\n", "between ops", "", "", "",
             between, 100 * between / step.seconds);
  const double limit = step.profile.LimitSeconds(false), whole = step.profile.LimitSeconds(true);
  fmt::print("products and attention at their best rates: {:.3f} s, {:.0f}% of the step\n", limit,
             100 * limit / step.seconds);
  fmt::print("and the other ops' operands at the rate of a copy: {:.3f} s, {:.0f}%\n", whole,
             100 * whole / step.seconds);
}

}  // namespace

ExitCode BenchCommand(int argc, const char* const* argv) {
  TrainOptions options;
  options.steps = 3;
  bool json = false;
  Flags flags("bench",
              "Times one training step op by op and holds each against this machine's limit: the "
              "best rate of the same matrix products, of attention, or of a copy of as many bytes. "
              "Takes the options of `train`; tokens are random, nothing is written. The fastest of "
              "--steps steps is shown (default: 3).");
  AddTrainFlags(flags, options);
  flags.app().get_option("--data")->required(false);
  flags.app().add_flag("--json", json, "one JSON object for programs")->group("Output");
  if (!flags.Parse(argc, argv)) return ExitCode::kOk;
  CheckTrainOptions(options);
  SetNumThreads(options.threads > 0 ? options.threads : AvailableCores());
  const Model model =
      OpenModel(options.model, options.build(), /*with_weights=*/!options.random_init);
  const int64_t budget = ResolveBudget(options.memory);
  const RunPlan plan = RunPlanner(model, MakePlanRequest(options, model.graph)).Plan(budget);
  fmt::print(stderr, "{}\n", Verdict(plan));
  std::optional<MeasuredStep> best;
  {
    StepBench bench(options, model, plan);
    bench.Step();
    for (int64_t i = 0; i < std::max<int64_t>(1, options.steps); ++i) {
      MeasuredStep step = bench.Step();
      if (!best || step.seconds < best->seconds) best.emplace(std::move(step));
    }
  }  // the arena is gone before the limits take memory of their own
  MachineLimits().Apply(model.graph, best->profile);
  if (json) {
    fmt::print("{}\n", ToJson(options, plan, *best).dump());
  } else {
    PrintTable(options, plan, *best);
  }
  return ExitCode::kOk;
}

}  // namespace haversack
