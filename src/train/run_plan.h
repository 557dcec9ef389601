// Before the first step: what fits the memory budget, and how fast it will be.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "io/model.h"
#include "plan/candidates.h"
#include "train/options.h"

namespace haversack {

struct MemoryBudget {
  int64_t budget = 0;   // what the whole process may hold
  int64_t process = 0;  // resident before the arena: libraries, tables, data structures
  int64_t reserve = 0;  // for what comes and goes on the heap and the stacks during a run
  int64_t arena() const { return budget - process - reserve; }
};

// The budget: `memory`, or 90% of what is free. More than is free is refused with both numbers (exit 2).
int64_t ResolveBudget(const std::optional<uint64_t>& memory);

struct RunPlan {
  Candidate chosen;
  MemoryBudget memory;
  int64_t predicted_peak_bytes = 0;
  double predicted_tokens_per_s = 0;
  int64_t smallest_peak_bytes = 0;  // over all candidates
};

// Reads --plan where it names a file.
PlanRequest MakePlanRequest(const TrainOptions& options, const Graph& graph);

// Chooses the fastest candidate within `budget` bytes. Throws UserError (exit 3) when none fits: by how
// much, the smallest budget that would do, and what to change.
RunPlan MakeRunPlan(const Model& model, const PlanRequest& request, int64_t budget,
                    const std::function<void(const std::string&)>& log);

}  // namespace haversack
