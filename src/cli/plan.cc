#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/threads.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "io/model.h"
#include "train/run_plan.h"

namespace haversack {
namespace {

nlohmann::json ToJson(const Graph& graph, const RunPlan& run, const TrainOptions& options) {
  nlohmann::json values = nlohmann::json::array();
  const int64_t tokens = run.chosen.plan.micro_batch * options.seq;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (!value.saved) continue;
    values.push_back({{"name", value.name},
                      {"action", run.chosen.plan.actions[v].ToText()},
                      {"bytes", value.bytes(tokens)}});
  }
  const auto peak = run.predicted_peak_bytes;
  return {{"fits", true},
          {"budget_bytes", run.memory.budget},
          {"predicted_peak_bytes", peak},
          {"short_by_bytes", 0},
          {"tokens_per_s", run.predicted_tokens_per_s},
          {"plan", run.chosen.plan.name},
          {"micro_batch", run.chosen.plan.micro_batch},
          {"smallest_peak_bytes", run.smallest_peak_bytes},
          {"values", values}};
}

}  // namespace

ExitCode PlanCommand(int argc, const char* const* argv) {
  TrainOptions options;
  bool json = false;
  Flags flags("plan",
              "Says whether a run fits its memory budget, its predicted peak and its speed. Takes the "
              "options of `train`; nothing is trained.");
  AddTrainFlags(flags, options);
  flags.app().get_option("--data")->required(false);
  flags.app().add_flag("--json", json, "one JSON object for programs")->group("Output");
  if (!flags.Parse(argc, argv)) return ExitCode::kOk;
  CheckTrainOptions(options);
  SetNumThreads(options.threads > 0 ? options.threads : AvailableCores());
  const Model model = OpenModel(options.model, options.seq, options.loss_chunk, false);
  const RunPlan run =
      MakeRunPlan(model, MakePlanRequest(options, model.graph), ResolveBudget(options.memory),
                  [&](const std::string& line) {
                    if (!json) fmt::print("{}\n", line);
                  });
  if (json) {
    fmt::print("{}\n", ToJson(model.graph, run, options).dump());
    return ExitCode::kOk;
  }
  fmt::print("  libraries and tables {}, reserve {}\n", FormatBytes(run.memory.process),
             FormatBytes(run.memory.reserve));
  const StateBytes state = TrainingState(model.layout, options.fused_update);
  fmt::print("  weights {}, gradients {}, moments {}\n", FormatBytes(state.weights),
             FormatBytes(state.gradients), FormatBytes(state.moments));
  fmt::print("  activations and scratch {} at micro-batch {}\n",
             FormatBytes(run.chosen.schedule.arena_bytes), run.chosen.plan.micro_batch);
  fmt::print("  smallest budget that fits {}\n", FormatBytes(run.smallest_peak_bytes));
  return ExitCode::kOk;
}

}  // namespace haversack
