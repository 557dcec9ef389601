// A rank's part of a step, cut into the micro-batches that memory allows.
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "schedule/schedule.h"
#include "train/strategy.h"

namespace haversack {

struct MicroStep {
  const Schedule* schedule = nullptr;
  Batch batch;
  uint64_t cursor = 0;    // of its first sequence
  int64_t sequences = 0;  // the rest is padding
};

class MicroBatches {
 public:
  // `largest`: the schedule of the planned micro-batch, which outlives this.
  explicit MicroBatches(const Schedule& largest) : largest_(largest) {}

  // A schedule of fewer sequences, for parts that are small. Ascending.
  void AddSmaller(Schedule schedule) { smaller_.push_back(std::move(schedule)); }

  // Reads the share's sequences: full micro-batches, the last as small as one that holds the rest,
  // padded. Returns the valid targets.
  int64_t Draw(const Dataset& data, const StepShare& share);
  std::vector<MicroStep>& steps() { return steps_; }

 private:
  int64_t size() const { return largest_.shape.sequences; }
  const Schedule& Fitting(int64_t sequences) const;

  const Schedule& largest_;
  std::vector<Schedule> smaller_;
  std::vector<MicroStep> steps_;
};

}  // namespace haversack
