// Ways to run an optimizer step, with what each needs and takes; the fastest that fits is chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exec/cost_profile.h"
#include "exec/model_state.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace haversack {

// What training keeps for each parameter, in bytes.
struct StateBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t total() const { return weights + gradients + moments; }
};
StateBytes TrainingState(const ParamLayout& layout, bool fused_update);

struct PlanRequest {
  int64_t batch = 1;  // sequences per optimizer step, of this process
  int64_t seq = 1;
  bool fused_update = false;
  std::optional<int64_t> micro_batch;  // fixed by the user; must divide the batch
  // "auto", "keep" or "recompute"; ignored where `plan` is given.
  std::string plan_name = "auto";
  std::optional<Plan> plan;
};

struct Candidate {
  Plan plan;
  Schedule schedule;
  int64_t state_bytes = 0;
  double step_seconds = 0;  // predicted, of an optimizer step; 0: not measured

  int64_t arena_bytes() const { return state_bytes + schedule.arena_bytes; }
};

// Every plan and micro-batch that `request` allows: micro-batches are the divisors of the batch. Throws
// UserError (exit 2) where the user's micro-batch does not divide the batch.
std::vector<Candidate> EnumerateCandidates(const Graph& graph, const ParamLayout& layout,
                                           const PlanRequest& request);

// The fastest of the candidates whose arena takes at most `arena_budget` bytes; at equal speed the one
// that needs least. -1 when none fits.
int ChooseCandidate(const std::vector<Candidate>& candidates, int64_t arena_budget);
// The one that needs least.
int SmallestCandidate(const std::vector<Candidate>& candidates);

// Fills `step_seconds` of the candidates that fit, measuring what `profile` lacks in a temporary arena.
void PredictSeconds(const Graph& graph, const ParamLayout& layout, int64_t batch,
                    int64_t arena_budget, CostProfile& profile, std::vector<Candidate>& candidates);

}  // namespace haversack
