#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "base/threads.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/plan_dist.h"
#include "cli/plan_svg.h"
#include "dist/agreement.h"
#include "io/model.h"
#include "train/low_rank_report.h"
#include "train/run_plan.h"

namespace haversack {
namespace {

constexpr int kFrontierPoints = 9;

nlohmann::json ValuesToJson(const Graph& graph, const Plan& plan, int64_t tokens) {
  nlohmann::json values = nlohmann::json::array();
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (!value.saved) continue;
    values.push_back({{"name", value.name},
                      {"action", plan.actions[v].ToText()},
                      {"bytes", value.bytes(tokens)}});
  }
  return values;
}

nlohmann::json ToJson(const std::vector<FrontierPoint>& frontier) {
  nlohmann::json points = nlohmann::json::array();
  for (const FrontierPoint& point : frontier) {
    points.push_back({{"budget_bytes", point.budget_bytes},
                      {"predicted_peak_bytes", point.predicted_peak_bytes},
                      {"tokens_per_s", point.tokens_per_s},
                      {"plan", point.plan},
                      {"micro_batch", point.micro_batch}});
  }
  return points;
}

// What becomes of each kind of saved value, over the layers.
void PrintTable(const std::vector<PlanRow>& rows, double micro_batches) {
  fmt::print("\n  {:<12} {:<24} {:>6} {:>11} {:>11} {:>10}\n", "saved value", "action", "values",
             "stored", "saved", "s a step");
  for (const PlanRow& row : rows) {
    fmt::print("  {:<12} {:<24} {:>6} {:>11} {:>11} {:>10.3f}\n", row.kind, row.action, row.values,
               FormatBytes(row.stored_bytes), FormatBytes(row.saved_bytes),
               micro_batches * row.seconds);
  }
  fmt::print("  (norm outputs and activations are rebuilt, row statistics kept, in every plan)\n");
}

nlohmann::json ToJson(const std::vector<PlanRow>& rows, double micro_batches) {
  nlohmann::json table = nlohmann::json::array();
  for (const PlanRow& row : rows) {
    table.push_back({{"kind", row.kind},
                     {"action", row.action},
                     {"values", row.values},
                     {"stored_bytes", row.stored_bytes},
                     {"saved_bytes", row.saved_bytes},
                     {"seconds", micro_batches * row.seconds}});
  }
  return table;
}

void PrintFrontier(const std::vector<FrontierPoint>& frontier) {
  fmt::print("\n  {:>12} {:>14} {:>10}  {}\n", "budget", "predicted peak", "tokens/s", "plan");
  for (const FrontierPoint& point : frontier) {
    fmt::print("  {:>12} {:>14} {:>10.0f}  {}, micro-batch {}\n", FormatBytes(point.budget_bytes),
               FormatBytes(point.predicted_peak_bytes), point.tokens_per_s, point.plan,
               point.micro_batch);
  }
}

void AddDistPlanFlags(Flags& flags, DistPlanFlags& network) {
  flags.app()
      .add_option("--workers", network.workers,
                  "ranks that a run over several is predicted for; memory is that of the first")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->type_name("N...")
      ->group("Several ranks (mpirun or srun starts them)");
  flags.app()
      .add_option("--bandwidth", network.bandwidth, "of each rank's link, such as 100Mbit")
      ->capture_default_str()
      ->group("Several ranks (mpirun or srun starts them)");
  flags.app()
      .add_option("--latency", network.latency, "one way, such as 30ms")
      ->capture_default_str()
      ->group("Several ranks (mpirun or srun starts them)");
}

// Targets of the run, as far as options tell; 0: they do not.
double TokensOf(const TrainOptions& options) {
  if (options.tokens) return static_cast<double>(*options.tokens);
  return static_cast<double>(options.steps * options.batch * options.seq);
}

}  // namespace

ExitCode PlanCommand(int argc, const char* const* argv) {
  TrainOptions options;
  bool json = false;
  std::string svg;
  Flags flags(
      "plan",
      "Says whether a run fits its memory budget, its predicted peak and its speed, and what "
      "other budgets would give. Takes the options of `train`; nothing is trained.");
  AddTrainFlags(flags, options);
  flags.app().get_option("--data")->required(false);
  flags.app().add_flag("--json", json, "one JSON object for programs")->group("Output");
  flags.app()
      .add_option("--svg", svg, "writes two pictures: memory over a micro-batch, and the frontier")
      ->type_name("DIR")
      ->group("Output");
  DistPlanFlags network;
  AddDistPlanFlags(flags, network);
  if (!flags.Parse(argc, argv)) return ExitCode::kOk;
  CheckTrainOptions(options);
  SetNumThreads(options.threads > 0 ? options.threads : AvailableCores());
  const Model model = OpenModel(options.model, options.build(), false);
  const int64_t budget = ResolveBudget(options.memory);
  PlanRequest request = MakePlanRequest(options, model.graph);
  const auto workers = static_cast<int>(network.workers[0]);
  if (options.dist.on()) request.batch = LargestShare(options.batch, workers);
  RunPlanner planner(model, request,
                     SharedBytes(options.dist, options.dist.mode, model.layout.total, workers));
  if (json && !planner.Fits(budget)) {
    fmt::print("{}\n",
               nlohmann::json({{"fits", false},
                               {"budget_bytes", budget},
                               {"predicted_peak_bytes", planner.smallest_budget_bytes()},
                               {"short_by_bytes", planner.smallest_budget_bytes() - budget}})
                   .dump());
    return ExitCode::kBudget;
  }
  const RunPlan run = planner.Plan(budget);
  const std::vector<FrontierPoint> frontier = planner.Frontier(budget, kFrontierPoints);
  const int64_t tokens = run.chosen.plan.micro_batch * options.seq;
  const double run_tokens = TokensOf(options);
  std::vector<PredictedMode> modes;
  if (options.dist.on() && run_tokens > 0) {
    modes = PredictModes(
        options.dist,
        {.parameters = model.layout.total,
         .tokens = run_tokens,
         .tokens_per_sequence = static_cast<double>(options.seq),
         .batch = static_cast<double>(options.batch),
         .seconds_per_sequence = run.chosen.step_seconds / static_cast<double>(request.batch),
         .micro_batch_sequences = static_cast<double>(run.chosen.plan.micro_batch)},
        network);
  }
  const auto micro_batches =
      static_cast<double>(options.batch) / static_cast<double>(run.chosen.plan.micro_batch);
  const nlohmann::json low_rank = model.graph.projections.empty()
                                      ? nlohmann::json()
                                      : LowRankToJson(model.graph, run.chosen.plan, options);
  if (json) {
    nlohmann::json answer = {{"fits", true},
                             {"budget_bytes", budget},
                             {"predicted_peak_bytes", run.predicted_peak_bytes},
                             {"short_by_bytes", 0},
                             {"tokens_per_s", run.predicted_tokens_per_s},
                             {"plan", run.chosen.plan.name},
                             {"micro_batch", run.chosen.plan.micro_batch},
                             {"smallest_budget_bytes", planner.smallest_budget_bytes()},
                             {"noise_share", run.chosen.noise_share},
                             {"table", ToJson(planner.Table(run), micro_batches)},
                             {"low_rank", low_rank},
                             {"values", ValuesToJson(model.graph, run.chosen.plan, tokens)},
                             {"frontier", ToJson(frontier)}};
    if (!modes.empty()) answer["dist"] = ToJson(modes);
    fmt::print("{}\n", answer.dump());
    return ExitCode::kOk;
  }
  fmt::print("{}\n", Verdict(run));
  fmt::print("  libraries and tables {}, reserve {}\n", FormatBytes(run.memory.process),
             FormatBytes(run.memory.reserve));
  const StateBytes state =
      TrainingState(model.layout, MomentLayout(model.graph, options.moments), options.fused_update);
  fmt::print("  weights {}, gradients {}, moments {}\n", FormatBytes(state.weights),
             FormatBytes(state.gradients), FormatBytes(state.moments));
  for (const std::string& line : DescribeLowRank(model.graph, run.chosen.plan, options)) {
    fmt::print("  {}\n", line);
  }
  if (run.shared_bytes > 0) {
    fmt::print("  outer state and messages {}\n", FormatBytes(run.shared_bytes));
  }
  fmt::print("  activations and scratch {} at micro-batch {}\n",
             FormatBytes(run.chosen.schedule.arena_bytes), run.chosen.plan.micro_batch);
  if (EncodesAny(run.chosen.plan)) {
    fmt::print(
        "  compression: about {:.2f}% of the gradient's sampling variance, by typical values; "
        "`train` measures it\n",
        100 * run.chosen.noise_share);
  }
  PrintTable(planner.Table(run), micro_batches);
  PrintFrontier(frontier);
  if (!svg.empty()) {
    std::filesystem::create_directories(svg);
    const Timeline timeline = MakeTimeline(run, state, planner.InstrSeconds(run));
    for (const auto& [name, picture] : {std::pair("memory.svg", TimelineSvg(timeline)),
                                        std::pair("frontier.svg", FrontierSvg(frontier, run))}) {
      const std::string path = (std::filesystem::path(svg) / name).string();
      WriteWholeFile(path, picture);
      fmt::print("  wrote {}\n", path);
    }
  }
  if (!modes.empty()) Print(modes, network, run_tokens);
  return ExitCode::kOk;
}

}  // namespace haversack
