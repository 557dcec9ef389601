#include "train/micro_batches.h"

#include <algorithm>

namespace haversack {

const Schedule& MicroBatches::Fitting(int64_t sequences) const {
  for (const Schedule& schedule : smaller_) {
    if (schedule.shape.sequences >= sequences) return schedule;
  }
  return largest_;
}

int64_t MicroBatches::Draw(const Dataset& data, const StepShare& share) {
  const int64_t at_least =
      std::clamp<int64_t>(share.parts, 1, std::max<int64_t>(1, share.sequences));
  const int64_t each = std::min(size(), (share.sequences + at_least - 1) / at_least);
  steps_.resize(each == 0 ? 0 : (share.sequences + each - 1) / each);
  int64_t valid = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    MicroStep& step = steps_[i];
    const int64_t first = static_cast<int64_t>(i) * each;
    step.sequences = std::min(each, share.sequences - first);
    step.schedule = &Fitting(step.sequences);
    step.cursor = share.cursor + static_cast<uint64_t>(first);
    data.Fill(step.cursor, step.sequences, step.batch, step.schedule->shape.sequences);
    valid += step.batch.valid_targets;
  }
  return valid;
}

}  // namespace haversack
