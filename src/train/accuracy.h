// The accuracy budget of a run: once the weights are there, what encoding costs is measured on the
// run's own data, the plan is chosen again, and its gradient is held against the exact one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/model_state.h"
#include "train/preparation.h"

namespace haversack {

// Whether the plan of `run` depends on what encoding costs, or lacks outlier columns.
bool NeedsCalibration(const PreparedRun& run);

// Where measuring may write: two arrays of ParamLayout::bytes() and the schedule's region.
struct AccuracyMemory {
  const float* weights = nullptr;
  float* first = nullptr;
  float* second = nullptr;
  float* basis = nullptr;
  float* workspace = nullptr;
  std::byte* region = nullptr;
  int64_t region_bytes = 0;
  int64_t beyond_bytes = 0;  // of the two arrays, where they take arena that the state does not
};

// Replaces run.plan by the fastest plan within the budget whose compression stays within
// --noise-share, checked as a whole; logs what was measured and decided. Throws UserError (exit 3)
// where only plans beyond the share fit.
void FitPlanToAccuracy(PreparedRun& run, const AccuracyMemory& memory);

}  // namespace haversack
