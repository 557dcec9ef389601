#include "train/run_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cache_folder.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/process_memory.h"

namespace haversack {
namespace {

// Heap and stacks that come and go during a run: I/O buffers, JSON, one batch of integers.
constexpr int64_t kReserve = int64_t{8} << 20;

std::string ChangesThatHelp(const PlanRequest& request, const Candidate& smallest) {
  // A micro-batch that is fixed, by the flag or by the run that is resumed, may be what does not
  // fit.
  const int64_t micro_batch = request.micro_batch.value_or(1) > 1 ? 1 : smallest.plan.micro_batch;
  std::string changes = fmt::format("--plan recompute --micro-batch {}", micro_batch);
  if (request.plan || request.plan_name == "keep" || request.micro_batch.value_or(1) > 1) {
    return "try " + changes;
  }
  return "try a shorter --seq, or --fused-update with --clip 0 and --micro-batch equal to --batch";
}

}  // namespace

int64_t ResolveBudget(const std::optional<uint64_t>& memory) {
  const int64_t free = AvailableBytes() + ResidentBytes();
  if (!memory) return free / 10 * 9;
  const auto wanted = static_cast<int64_t>(*memory);
  if (wanted > free) {
    throw UserError(ExitCode::kUsage,
                    "--memory {} is more than the {} that this machine (or its control group) has "
                    "free; ask for less",
                    FormatBytes(wanted), FormatBytes(free));
  }
  return wanted;
}

PlanRequest MakePlanRequest(const TrainOptions& options, const Graph& graph) {
  PlanRequest request = {.batch = options.batch,
                         .seq = options.seq,
                         .fused_update = options.fused_update,
                         .micro_batch = options.micro_batch,
                         .plan_name = options.plan,
                         .plan = std::nullopt};
  if (options.plan != "auto" && options.plan != "keep" && options.plan != "recompute") {
    request.plan =
        PlanFromJson(graph, ParseJson(ReadWholeFile(options.plan), options.plan), options.plan);
    if (!request.micro_batch && request.plan->micro_batch > 0) {
      request.micro_batch = request.plan->micro_batch;
    }
  }
  return request;
}

namespace {

// One point of budget against speed.
FrontierPoint PointAt(Candidates& candidates, const PlanRequest& request, int64_t overhead,
                      int64_t arena_bytes) {
  const std::optional<Candidate> best = candidates.Choose(arena_bytes);
  HAVERSACK_CHECK(best.has_value(), "no candidate in {} bytes", arena_bytes);
  return {.budget_bytes = overhead + arena_bytes,
          .predicted_peak_bytes = overhead + best->arena_bytes(),
          .tokens_per_s = static_cast<double>(request.batch * request.seq) / best->step_seconds,
          .plan = best->plan.name,
          .micro_batch = best->plan.micro_batch};
}

}  // namespace

RunPlanner::RunPlanner(const Model& model, const PlanRequest& request, int64_t loss_chunk)
    : request_(request),
      candidates_(model.config, model.graph, model.layout,
                  {.positions = request.seq, .loss_chunk = loss_chunk}, request) {
  if (const std::optional<std::string> cache = CacheFolder()) {
    profile_path_ = CostProfilePath(*cache);
    profile_ = CostProfile::Load(profile_path_);
  }
  candidates_.WarmUp(profile_);
  TrimHeap();
  process_ = ResidentBytes();
}

RunPlan RunPlanner::Plan(int64_t budget) {
  const Candidate& smallest = candidates_.smallest();
  if (smallest_peak_bytes() > budget) {
    throw UserError(
        ExitCode::kBudget,
        "does not fit: --memory {} is short by {}; the smallest that fits is {} (libraries and "
        "tables {}, weights, gradients and moments {}, activations {} at micro-batch {}); raise "
        "--memory, or {}",
        FormatBytes(budget), FormatBytes(smallest_peak_bytes() - budget),
        FormatBytes(smallest_peak_bytes()), FormatBytes(overhead()),
        FormatBytes(smallest.state_bytes), FormatBytes(smallest.schedule.arena_bytes),
        smallest.plan.micro_batch, ChangesThatHelp(request_, smallest));
  }
  Measure(budget);
  std::optional<Candidate> chosen = candidates_.Choose(budget - overhead());
  if (!chosen) {
    throw UserError(ExitCode::kBudget,
                    "does not fit: --memory {} is short by {}; the smallest that fits is {}",
                    FormatBytes(budget), FormatBytes(smallest_peak_bytes() - budget),
                    FormatBytes(smallest_peak_bytes()));
  }
  RunPlan run;
  run.memory = {.budget = budget, .process = process_, .reserve = kReserve};
  run.chosen = std::move(*chosen);
  run.predicted_peak_bytes = overhead() + run.chosen.arena_bytes();
  run.predicted_tokens_per_s =
      static_cast<double>(request_.batch * request_.seq) / run.chosen.step_seconds;
  return run;
}

void RunPlanner::Measure(int64_t budget) {
  candidates_.Measure(budget - overhead(), profile_);
  if (!profile_path_.empty()) profile_.Save(profile_path_);
  // What larger products made the libraries allocate counts before a plan is chosen.
  TrimHeap();
  process_ = std::max(process_, ResidentBytes());
}

std::vector<FrontierPoint> RunPlanner::Frontier(int64_t budget, int points) {
  const int64_t least = candidates_.smallest().arena_bytes();
  const int64_t most = std::min(candidates_.largest_arena_bytes(), budget - overhead());
  std::vector<FrontierPoint> frontier;
  // Ascending: what a small budget found is there for the larger ones.
  for (int i = 0; i < points && most >= least; ++i) {
    const int64_t bytes = least + (most - least) * i / std::max(1, points - 1);
    frontier.push_back(PointAt(candidates_, request_, overhead(), bytes));
    if (most == least) break;
  }
  return frontier;
}

int64_t RunPlanner::overhead() const { return process_ + kReserve; }

std::string Verdict(const RunPlan& run) {
  return fmt::format("fits: predicted peak {} of {} ({}, micro-batch {}), about {:.0f} tokens/s",
                     FormatBytes(run.predicted_peak_bytes), FormatBytes(run.memory.budget),
                     run.chosen.plan.name, run.chosen.plan.micro_batch,
                     run.predicted_tokens_per_s);
}

}  // namespace haversack
