#include "cli/plan_dist.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"

namespace haversack {
namespace {

// As the run itself sets its largest batch where the user does not: 20 rounds stay possible.
double LargestBatch(const DistOptions& options, const PredictedRun& run) {
  if (options.batch_max) return static_cast<double>(*options.batch_max);
  const double sequences = run.tokens / run.tokens_per_sequence;
  return std::max(run.batch, sequences / (20.0 * static_cast<double>(options.inner_steps)));
}

std::string Duration(double seconds) {
  if (seconds >= 2 * 86400) return fmt::format("{:.1f} d", seconds / 86400);
  if (seconds >= 2 * 3600) return fmt::format("{:.1f} h", seconds / 3600);
  if (seconds >= 120) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.1f} s", seconds);
}

}  // namespace

std::vector<PredictedMode> PredictModes(const DistOptions& options, PredictedRun run,
                                        const DistPlanFlags& flags) {
  const NetworkLink link = flags.Link();
  std::vector<PredictedMode> modes;
  for (const int64_t workers : flags.workers) {
    run.workers = workers;
    const auto add = [&](const std::string& name, DistMode mode, BatchGrowth growth) {
      modes.push_back(
          {name, workers, Predict(options, mode, run, link, growth, LargestBatch(options, run))});
    };
    add("ddp", DistMode::kDdp, BatchGrowth::kFixed);
    add("diloco", DistMode::kDiloco, BatchGrowth::kFixed);
    for (const BatchGrowth growth :
         {BatchGrowth::kFixed, BatchGrowth::kLinear, BatchGrowth::kDoubling}) {
      add("adloco, " + ToText(growth), DistMode::kAdloco, growth);
    }
  }
  return modes;
}

nlohmann::json ToJson(const std::vector<PredictedMode>& modes) {
  nlohmann::json all = nlohmann::json::array();
  for (const PredictedMode& mode : modes) {
    const Prediction& p = mode.prediction;
    all.push_back({{"mode", mode.name},
                   {"workers", mode.workers},
                   {"steps", p.steps},
                   {"syncs", p.syncs},
                   {"sent_bytes", p.sent_bytes},
                   {"utilisation", p.utilisation()},
                   {"seconds", p.seconds()}});
  }
  return all;
}

void Print(const std::vector<PredictedMode>& modes, const DistPlanFlags& flags, double tokens) {
  fmt::print("\n  {:.3g} tokens over links of {} and {}\n", tokens, flags.bandwidth, flags.latency);
  fmt::print("  {:>8} {:<38} {:>9} {:>8} {:>12} {:>12} {:>10}\n", "workers", "mode", "steps",
             "syncs", "sent a rank", "utilisation", "time");
  for (const PredictedMode& mode : modes) {
    const Prediction& p = mode.prediction;
    fmt::print("  {:>8} {:<38} {:>9.0f} {:>8.0f} {:>12} {:>11.1f}% {:>10}\n", mode.workers,
               mode.name, p.steps, p.syncs, FormatBytes(static_cast<uint64_t>(p.sent_bytes)),
               100 * p.utilisation(), Duration(p.seconds()));
  }
}

}  // namespace haversack
