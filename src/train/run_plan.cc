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
#include "kernels/gemm.h"

namespace haversack {
namespace {

// Heap and stacks that come and go during a run: I/O buffers, JSON, one batch of integers.
constexpr int64_t kReserve = int64_t{8} << 20;

// Runs the run's largest products once, so that the buffers that the BLAS library keeps for itself are
// resident before they are counted.
void WarmUpGemm(const Graph& graph, int64_t tokens) {
  int64_t cols = 1;
  for (const Param& param : graph.params) cols = std::max(cols, std::min(param.rows, param.cols));
  const int64_t rows = std::min<int64_t>(tokens, 512);
  std::vector<float> a(rows * cols, 0), b(rows * cols, 0), c(rows * rows, 0);
  Gemm(Transpose::kNo, Transpose::kYes, rows, rows, cols, 1, a.data(), cols, b.data(), cols, 0,
       c.data(), rows);
}

std::string ChangesThatHelp(const PlanRequest& request, const Candidate& smallest) {
  std::string changes = fmt::format("--plan recompute --micro-batch {}", smallest.plan.micro_batch);
  if (request.plan || request.plan_name == "keep" ||
      request.micro_batch.value_or(1) > 1) {
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

RunPlan MakeRunPlan(const Model& model, const PlanRequest& request, int64_t budget,
                    const std::function<void(const std::string&)>& log) {
  std::vector<Candidate> candidates = EnumerateCandidates(model.graph, model.layout, request);
  WarmUpGemm(model.graph, request.batch * request.seq);
  TrimHeap();
  RunPlan run;
  run.memory = {.budget = budget, .process = ResidentBytes(), .reserve = kReserve};
  const Candidate& smallest = candidates[SmallestCandidate(candidates)];
  const int64_t overhead = run.memory.process + run.memory.reserve;
  run.smallest_peak_bytes = overhead + smallest.arena_bytes();
  if (run.smallest_peak_bytes > budget) {
    throw UserError(
        ExitCode::kBudget,
        "does not fit: --memory {} is short by {}; the smallest that fits is {} (libraries and "
        "tables {}, weights, gradients and moments {}, activations {} at micro-batch {}); raise "
        "--memory, or {}",
        FormatBytes(budget), FormatBytes(run.smallest_peak_bytes - budget),
        FormatBytes(run.smallest_peak_bytes), FormatBytes(overhead),
        FormatBytes(smallest.state_bytes), FormatBytes(smallest.schedule.arena_bytes),
        smallest.plan.micro_batch, ChangesThatHelp(request, smallest));
  }
  const std::optional<std::string> cache = CacheFolder();
  const std::string profile_path = cache ? CostProfilePath(*cache) : "";
  CostProfile profile = cache ? CostProfile::Load(profile_path) : CostProfile();
  PredictSeconds(model.graph, model.layout, request.batch, run.memory.arena(), profile, candidates);
  if (cache) profile.Save(profile_path);
  // The measurement made the libraries' own buffers resident; count them before choosing.
  TrimHeap();
  run.memory.process = std::max(run.memory.process, ResidentBytes());
  const int chosen = ChooseCandidate(candidates, run.memory.arena());
  if (chosen < 0) {
    throw UserError(ExitCode::kBudget,
                    "does not fit: --memory {} is short by {}; the smallest that fits is {}",
                    FormatBytes(budget),
                    FormatBytes(smallest.arena_bytes() - run.memory.arena()),
                    FormatBytes(budget + smallest.arena_bytes() - run.memory.arena()));
  }
  run.chosen = std::move(candidates[chosen]);
  run.predicted_peak_bytes =
      run.memory.process + run.memory.reserve + run.chosen.arena_bytes();
  run.predicted_tokens_per_s =
      static_cast<double>(request.batch * request.seq) / run.chosen.step_seconds;
  log(fmt::format("fits: predicted peak {} of {} ({}, micro-batch {}), about {:.0f} tokens/s",
                  FormatBytes(run.predicted_peak_bytes), FormatBytes(budget), run.chosen.plan.name,
                  run.chosen.plan.micro_batch, run.predicted_tokens_per_s));
  return run;
}

}  // namespace haversack
