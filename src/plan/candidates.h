// Ways to run an optimizer step, with what each needs and takes; the fastest that fits is chosen.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/cost_profile.h"
#include "exec/model_state.h"
#include "graph/graph.h"
#include "models/config.h"
#include "plan/planner.h"
#include "schedule/schedule.h"

namespace haversack {

// What training keeps for each parameter, in bytes.
struct StateBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t projections = 0;  // bases and the space that they work in
  int64_t total() const { return weights + gradients + moments + projections; }
};
StateBytes TrainingState(const ParamLayout& layout, const MomentLayout& moments, bool fused_update);

struct PlanRequest {
  int64_t batch = 1;  // sequences per optimizer step, of this process
  int64_t seq = 1;
  bool fused_update = false;
  MomentType moments = MomentType::kF32;
  std::optional<int64_t> micro_batch;  // fixed by the user; must divide the batch
  // "auto", "keep" or "recompute"; ignored where `plan` is given.
  std::string plan_name = "auto";
  std::optional<Plan> plan;
  ActionSet actions = ActionSet::Exact();  // of "auto"
  // Most that an encoded plan's error may be, as a share of V (plan/noise.h); nullopt: any.
  std::optional<double> noise_limit;

  bool automatic() const { return plan_name == "auto" && !plan; }
};

struct Candidate {
  Plan plan;
  Schedule schedule;
  int64_t state_bytes = 0;
  double step_seconds = 0;  // predicted, of an optimizer step
  double noise_share = 0;   // by the noise table

  int64_t arena_bytes() const { return state_bytes + schedule.arena_bytes; }
};

// The plans of one request, for any number of budgets. Costs are measured once, on a model of one
// layer in a temporary arena, at every micro-batch that fits.
class Candidates {
 public:
  // Throws UserError (exit 2) where the user's micro-batch does not divide the batch. `graph` and
  // `layout` are of the whole model; all references outlive this.
  Candidates(const ModelConfig& config, const Graph& graph, const ParamLayout& layout,
             const BuildOptions& build, const PlanRequest& request);

  // What encoding costs in accuracy, and how much of it is allowed (nullopt: any); the request's
  // limit on typical values until then.
  void SetNoise(const NoiseTable& table, std::optional<double> limit);
  int64_t state_bytes() const { return state_.total(); }
  const Graph& one_block() const { return one_block_; }

  // What the smallest plan needs, however much its compression adds to the gradient's noise.
  int64_t least_arena_bytes() const { return least_arena_bytes_; }
  // The candidate that needs least, whatever its speed; exact, unless any noise is allowed.
  const Candidate& smallest() const { return smallest_; }
  // The largest arena that any candidate could use: more is never faster.
  int64_t largest_arena_bytes() const { return largest_arena_bytes_; }

  // Runs everything that the smallest candidate runs once, on a model of one layer in a temporary
  // arena, so that what the libraries allocate for themselves is resident and can be counted.
  void WarmUp(CostProfile& profile);

  // Measures what `profile` lacks, at the micro-batches that fit into an arena of `arena_budget`
  // bytes.
  void Measure(int64_t arena_budget, CostProfile& profile);

  // The fastest within `arena_budget` bytes, or nothing. After Measure.
  std::optional<Candidate> Choose(int64_t arena_budget);

 private:
  struct Size {
    int64_t micro_batch = 1;
    int64_t least_bytes = 0;  // of the schedule
    bool measured = false;
    std::unique_ptr<Planner> planner;  // of an "auto" request
  };
  void FindSmallest();
  Plan LeastPlan(int64_t micro_batch, bool any) const;
  void MeasureSize(Size& size, CostProfile& profile);
  BatchShape ShapeOf(const Size& size) const;
  Plan FixedPlan(const Graph& graph, int64_t micro_batch) const;
  Candidate MakeCandidate(Plan plan, Schedule schedule, double micro_batch_seconds) const;
  Candidate MakeFixed(const Size& size) const;
  double StepSeconds(int64_t micro_batch, double micro_batch_seconds) const;
  std::vector<Plan> PlansOfLayers(const Plan& whole, int64_t micro_batch) const;

  const Graph& graph_;
  PlanRequest request_;
  Graph one_block_;
  ParamLayout one_block_layout_;
  ScheduleMode mode_;
  StateBytes state_;
  NoiseTable noise_;
  BlockMenu bytes_menu_;  // block plans at the smallest micro-batch, without costs
  std::vector<Size> sizes_;
  Candidate smallest_;
  int64_t largest_arena_bytes_ = 0;
  int64_t least_arena_bytes_ = 0;
  const CostProfile* profile_ = nullptr;
};

}  // namespace haversack
