// Before the first step: what fits the memory budget, and how fast it will be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/model.h"
#include "plan/candidates.h"
#include "plan/plan_table.h"
#include "train/options.h"

namespace haversack {

struct MemoryBudget {
  int64_t budget = 0;   // what the whole process may hold
  int64_t process = 0;  // resident before the arena: libraries, tables, data structures
  int64_t reserve = 0;  // for what comes and goes on the heap and the stacks during a run
  int64_t arena() const { return budget - process - reserve; }

  // Counts again what is resident beside the arena's `arena_bytes`. Small growth, as the first use
  // of a library brings it, is what the reserve is for, so that the sum stays as it was first told.
  void Recount(int64_t arena_bytes = 0);
};

// `bytes` in whole MiB, rounded up by more than what the resident bytes of equal processes differ:
// a budget that is told holds in the run that is given it.
int64_t WholeMiB(int64_t bytes);

// What the process holds now beside an arena; `tokens`: of an optimizer step, whose ids, targets
// and positions come on the heap.
MemoryBudget MeasureMemory(int64_t tokens, int64_t budget);

// Bytes that may be taken now without passing `budget`.
int64_t LeftOf(int64_t budget);

// The budget: `memory`, or 90% of what is free for each of the `processes` of a run on this
// machine. More than is free is refused with both numbers (exit 2).
int64_t ResolveBudget(const std::optional<uint64_t>& memory, int processes = 1);

struct RunPlan {
  Candidate chosen;
  MemoryBudget memory;
  int64_t predicted_peak_bytes = 0;
  double predicted_tokens_per_s = 0;
  int64_t shared_bytes = 0;  // outer state and messages of a distributed run
};

// "fits: predicted peak ... of ... (plan, micro-batch), about ... tokens/s"
std::string Verdict(const RunPlan& run);

struct FrontierPoint {
  int64_t budget_bytes = 0;
  int64_t predicted_peak_bytes = 0;
  double tokens_per_s = 0;
  std::string plan;
  int64_t micro_batch = 1;
};

// Reads --plan where it names a file.
PlanRequest MakePlanRequest(const TrainOptions& options, const Graph& graph);

// Chooses how to run `model` within a budget. Makes the BLAS library's buffers resident first, so
// that they are counted.
class RunPlanner {
 public:
  // `model` outlives this. `shared_bytes`: what a distributed run keeps beside the arena.
  RunPlanner(const Model& model, const PlanRequest& request, int64_t shared_bytes = 0);

  // Before the data is read, which can take long: throws as Plan does.
  void CheckFits(int64_t budget) const;

  // The fastest way within `budget` bytes. Throws UserError (exit 3) when none fits: by how much,
  // the smallest budget that would do, and what to change.
  RunPlan Plan(int64_t budget);

  // After Plan, once the arena exists: the fastest way within `budget` bytes by what is known now.
  RunPlan Replan(int64_t budget);
  // Nothing where nothing fits.
  std::optional<RunPlan> TryReplan(int64_t budget);

  std::vector<PlanRow> Table(const RunPlan& run) const;
  // Predicted seconds of each instruction of a micro-batch.
  std::vector<double> InstrSeconds(const RunPlan& run) const;

  // Whether the plan is chosen here, and whether that may be an encoded one.
  bool automatic() const { return request_.automatic(); }
  bool lossy() const { return request_.automatic() && request_.actions.lossy(); }
  // What encoding costs in accuracy, and how much of it is allowed.
  void SetNoise(const NoiseTable& table, std::optional<double> limit);
  // Rules encoded plans out. Whether an exact one fits.
  bool AllowOnlyExact(int64_t budget);
  const Graph& one_block() const { return candidates_.one_block(); }
  // Counts what measuring made resident in the libraries, beside the model's state and
  // `region_bytes` of the schedule's region.
  void Recount(int64_t region_bytes);
  // Of the whole process, with a schedule of `region_bytes`.
  int64_t PeakOf(int64_t region_bytes) const;

  // After Plan: the best speed at `points` budgets from the smallest that fits to what is worth
  // using, none above `budget`. More budget is never slower.
  std::vector<FrontierPoint> Frontier(int64_t budget, int points);

  // The smallest budget that fits, as WholeMiB.
  int64_t smallest_budget_bytes() const;
  bool Fits(int64_t budget) const;

 private:
  int64_t overhead() const { return memory_.process + memory_.reserve + shared_bytes_; }
  void Measure(int64_t budget);
  std::string OrWithAnyNoise() const;

  const Graph& graph_;
  PlanRequest request_;
  int64_t shared_bytes_;
  Candidates candidates_;
  std::string profile_path_;  // empty: nowhere to keep it
  CostProfile profile_;
  MemoryBudget memory_;  // its budget is not set: that comes with each call
};

}  // namespace haversack
