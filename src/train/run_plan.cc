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

// Heap and stacks that come and go during a run: I/O buffers, JSON, libraries' first uses.
constexpr int64_t kReserve = int64_t{8} << 20;
// What of it must be left when the run begins.
constexpr int64_t kLeastReserve = int64_t{4} << 20;
// Ids, targets and positions of one position, and a boundary.
constexpr int64_t kBatchBytesPerToken = 4 * sizeof(int32_t);
// Resident bytes of equal processes differ by about 1 MiB: the kernel maps pages of libraries
// around those that are touched, as many as it happens to have in memory.
constexpr int64_t kJitter = int64_t{3} << 20;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kResumeSlack = 6 * kMiB;

std::string ChangesThatHelp(const PlanRequest& request, const Candidate& smallest) {
  if (request.fused_update) return "try a smaller --batch or a shorter --seq";
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

void MemoryBudget::Recount(int64_t arena_bytes) {
  TrimHeap();
  const int64_t growth = ResidentBytes() - arena_bytes - process;
  if (growth <= 0) return;
  process += growth;
  reserve = std::max(reserve - growth, std::min(reserve, kLeastReserve));
}

int64_t WholeMiB(int64_t bytes) { return static_cast<int64_t>(AlignUp(bytes + kJitter, kMiB)); }

MemoryBudget MeasureMemory(int64_t tokens, int64_t budget) {
  TrimHeap();
  return {.budget = budget,
          .process = ResidentBytes(),
          .reserve = kReserve + tokens * kBatchBytesPerToken};
}

int64_t LeftOf(int64_t budget) { return std::max<int64_t>(0, budget - ResidentBytes()); }

int64_t ResolveBudget(const std::optional<uint64_t>& memory, int processes) {
  const int64_t free = AvailableBytes() / processes + ResidentBytes();
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
                         .moments = options.moments,
                         .micro_batch = options.micro_batch,
                         .plan_name = options.plan,
                         .plan = std::nullopt,
                         .actions = ParseActions(options.actions, "--actions"),
                         .noise_limit = options.noise_share};
  if (options.plan != "auto" && options.plan != "keep" && options.plan != "recompute") {
    request.plan =
        PlanFromJson(graph, ParseJson(ReadWholeFile(options.plan), options.plan), options.plan);
    if (!request.micro_batch && request.plan->micro_batch > 0) {
      request.micro_batch = request.plan->micro_batch;
    }
  }
  // Ranks that weigh encoded plans by their own data might disagree on the micro-batch, and a
  // projection's error stands outside the accuracy budget.
  if (options.dist.on() || options.low_rank.method != LowRankMethod::kNone) {
    request.actions.codecs.clear();
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

RunPlanner::RunPlanner(const Model& model, const PlanRequest& request, int64_t shared_bytes)
    : graph_(model.graph),
      request_(request),
      shared_bytes_(shared_bytes),
      candidates_(model.config, model.graph, model.layout, model.build, request) {
  if (const std::optional<std::string> cache = CacheFolder()) {
    profile_path_ = CostProfilePath(*cache);
    profile_ = CostProfile::Load(profile_path_);
  }
  candidates_.WarmUp(profile_);
  memory_ = MeasureMemory(request.batch * request.seq, 0);
}

bool RunPlanner::Fits(int64_t budget) const {
  return overhead() + candidates_.smallest().arena_bytes() <= budget;
}

int64_t RunPlanner::smallest_budget_bytes() const {
  return WholeMiB(overhead() + candidates_.smallest().arena_bytes());
}

void RunPlanner::CheckFits(int64_t budget) const {
  if (Fits(budget)) return;
  const Candidate& smallest = candidates_.smallest();
  throw UserError(
      ExitCode::kBudget,
      "does not fit: --memory {} is short by {}; the smallest that fits is {}MiB (libraries and "
      "tables {}, {}weights, gradients and moments {}, activations {} at micro-batch {}); raise "
      "--memory, or {}{}",
      FormatBytes(budget), FormatBytes(smallest_budget_bytes() - budget),
      smallest_budget_bytes() / kMiB, FormatBytes(overhead() - shared_bytes_),
      shared_bytes_ == 0 ? ""
                         : fmt::format("outer state and messages {}, ", FormatBytes(shared_bytes_)),
      FormatBytes(smallest.state_bytes), FormatBytes(smallest.schedule.arena_bytes),
      smallest.plan.micro_batch, ChangesThatHelp(request_, smallest), OrWithAnyNoise());
}

RunPlan RunPlanner::Plan(int64_t budget) {
  memory_.Recount();
  CheckFits(budget);
  // What came before the arena and is gone again had a peak of its own.
  if (const int64_t seen = PeakResidentBytes(); seen > budget) {
    throw UserError(ExitCode::kBudget,
                    "does not fit: --memory {} is short by {}; reading the tokenizer and the data "
                    "took {}, and the smallest that fits is {}MiB; raise --memory",
                    FormatBytes(budget), FormatBytes(WholeMiB(seen) - budget), FormatBytes(seen),
                    WholeMiB(seen) / kMiB);
  }
  Measure(budget);
  CheckFits(budget);
  RunPlan run = Replan(budget);
  run.predicted_peak_bytes = std::max(PeakResidentBytes(), run.predicted_peak_bytes);
  return run;
}

std::string RunPlanner::OrWithAnyNoise() const {
  const int64_t least = WholeMiB(overhead() + candidates_.least_arena_bytes());
  if (!lossy() || least >= smallest_budget_bytes()) return "";
  return fmt::format("; --noise-share none, which lets compression cost accuracy, fits in {}MiB",
                     least / kMiB);
}

RunPlan RunPlanner::Replan(int64_t budget) {
  std::optional<RunPlan> run = TryReplan(budget);
  HAVERSACK_CHECK(run.has_value(), "no candidate in {} bytes", budget);
  return std::move(*run);
}

std::optional<RunPlan> RunPlanner::TryReplan(int64_t budget) {
  // A resumed run goes on with an encoded plan, and may find its libraries some MiB larger.
  std::optional<Candidate> chosen;
  if (lossy()) chosen = candidates_.Choose(budget - overhead() - kResumeSlack);
  if (!chosen) chosen = candidates_.Choose(budget - overhead());
  if (!chosen) return std::nullopt;
  RunPlan run;
  run.memory = memory_;
  run.memory.budget = budget;
  run.shared_bytes = shared_bytes_;
  run.chosen = std::move(*chosen);
  run.predicted_peak_bytes = overhead() + run.chosen.arena_bytes();
  run.predicted_tokens_per_s =
      static_cast<double>(request_.batch * request_.seq) / run.chosen.step_seconds;
  return run;
}

std::vector<double> RunPlanner::InstrSeconds(const RunPlan& run) const {
  std::vector<double> seconds;
  for (const Instr& instr : run.chosen.schedule.instrs) {
    seconds.push_back(profile_.Seconds(graph_, run.chosen.schedule, instr));
  }
  return seconds;
}

std::vector<PlanRow> RunPlanner::Table(const RunPlan& run) const {
  return TabulatePlan(graph_, run.chosen.plan, run.chosen.schedule, profile_);
}

void RunPlanner::SetNoise(const NoiseTable& table, std::optional<double> limit) {
  candidates_.SetNoise(table, limit);
}

bool RunPlanner::AllowOnlyExact(int64_t budget) {
  candidates_.SetNoise({}, 0.0);
  return Fits(budget);
}

void RunPlanner::Recount(int64_t region_bytes) {
  memory_.Recount(candidates_.state_bytes() + region_bytes);
}

int64_t RunPlanner::PeakOf(int64_t region_bytes) const {
  return overhead() + candidates_.state_bytes() + region_bytes;
}

void RunPlanner::Measure(int64_t budget) {
  candidates_.Measure(budget - overhead(), profile_);
  if (!profile_path_.empty()) profile_.Save(profile_path_);
  // What larger products made the libraries allocate counts before a plan is chosen.
  memory_.Recount();
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

std::string Verdict(const RunPlan& run) {
  return fmt::format("fits: predicted peak {} of {} ({}, micro-batch {}), about {:.0f} tokens/s",
                     FormatBytes(run.predicted_peak_bytes), FormatBytes(run.memory.budget),
                     run.chosen.plan.name, run.chosen.plan.micro_batch, run.predicted_tokens_per_s);
}

}  // namespace haversack
