// Measures on real micro-batches what encoding costs in accuracy, before the first step: the
// gradient's sampling variance, the error of each codec on each value, how much of an error arrives
// in the gradient, and in the end a whole plan against the exact gradient.
//
// Gradients are held whole, in two arrays that the run does not need yet (the moments are zero), so
// every distance is exact.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "plan/noise.h"

namespace haversack {

struct CalibrationMemory {
  const float* weights = nullptr;
  float* first = nullptr;      // gradients by ParamLayout, overwritten
  float* second = nullptr;     // likewise
  float* basis = nullptr;      // of projections: ModelState's
  float* workspace = nullptr;  // likewise
  std::byte* region = nullptr;
  int64_t region_bytes = 0;
};

class Calibration {
 public:
  // Micro-batch `index` of one sequence cut to `tokens`, with its own mean as loss; the spans hold
  // until the next call.
  using Batches = std::function<MicroBatch(int64_t index, int64_t tokens)>;

  // All references outlive this. `seq`: the longest sequence that `batches` can give.
  Calibration(const Graph& whole, const Graph& one_block, const ParamLayout& layout,
              const CalibrationMemory& memory, int64_t seq, Batches batches);

  // Tokens of the micro-batches that are used; 0: not even the shortest worth using fits the
  // region.
  int64_t tokens() const { return shape_.seq; }
  // Bytes of the region that any call may have used so far.
  int64_t region_bytes() const { return region_bytes_; }

  // The error and the outlier columns of every codec on every open value, and of those of `plan`.
  void MeasureErrors(const Plan& plan);
  // V, and the gains. Right after MeasureErrors, whose gradient it goes on from.
  void MeasureGains();
  const NoiseTable& noise() const { return noise_; }
  double variance() const { return variance_; }  // V, of a micro-batch

  // The measured columns, for what `plan` encodes with outliers.
  void SetOutliers(Plan& plan) const;

  struct Check {
    double share = 0;   // of V: |sum of errors|^2 / n, which a bias makes grow with n
    double cosine = 1;  // between the summed gradients, exact and encoded
    // 0: errors average out over micro-batches; 1: they are all the same.
    double bias = 0;
  };
  // Compares the plan's gradient with the exact one on a few micro-batches. After MeasureGains.
  Check CheckPlan(const Plan& plan);

 private:
  void Gradient(const Plan& plan, int64_t batch, float* grads, bool accumulate,
                const Executor::Observer& observer = nullptr);
  void AddErrors(ValueId v, const std::vector<Action>& actions, const float* x);
  double ProbeDistance(const Plan& plan, const float* exact, float* other);
  void MeasureGainsOf(size_t open, const float* exact, float* other);

  const Graph& whole_;
  const Graph& one_block_;
  const ParamLayout& layout_;
  CalibrationMemory memory_;
  Batches batches_;
  BatchShape shape_;
  std::vector<OpenValue> open_;
  int64_t region_bytes_ = 0;
  NoiseTable noise_;
  std::map<std::string, std::vector<int32_t>> columns_;  // by "VALUE/PIECE COUNT"
  double variance_ = 0;
};

}  // namespace haversack
