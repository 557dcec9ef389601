#include "train/evaluate.h"

namespace haversack {

MicroBatch ViewOf(const Batch& batch, float loss_scale, double* loss_sum) {
  return {.ids = batch.tokens,
          .targets = batch.targets,
          .positions = batch.positions,
          .boundaries = batch.boundaries,
          .loss_scale = loss_scale,
          .loss_sum = loss_sum};
}

Evaluation Evaluate(const Dataset& data, const Schedule& schedule, Executor& executor,
                    const std::function<bool()>& stop) {
  Evaluation result;
  Batch batch;
  const auto step = static_cast<uint64_t>(schedule.shape.sequences);
  for (uint64_t first = 0; first < data.sequences(); first += step) {
    if (stop && stop()) {
      result.complete = false;
      break;
    }
    data.FillInOrder(first, schedule.shape.sequences, batch);
    if (batch.valid_targets == 0) continue;
    executor.Run(schedule, ViewOf(batch, 1, &result.loss_sum), false);
    result.tokens += batch.valid_targets;
  }
  return result;
}

}  // namespace haversack
