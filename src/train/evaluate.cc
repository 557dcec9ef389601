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
                    const Communicator& ranks, const std::function<bool()>& stop) {
  Evaluation result;
  Batch batch;
  const auto step = static_cast<uint64_t>(schedule.shape.sequences);
  const auto size = static_cast<uint64_t>(ranks.size());
  for (uint64_t first = step * static_cast<uint64_t>(ranks.rank()); first < data.sequences();
       first += step * size) {
    if (stop && stop()) {
      result.complete = false;
      break;
    }
    data.FillInOrder(first, schedule.shape.sequences, batch);
    if (batch.valid_targets == 0) continue;
    executor.Run(schedule, ViewOf(batch, 1, &result.loss_sum), false);
    result.tokens += batch.valid_targets;
  }
  if (ranks.alone()) return result;
  Evaluation all = {.complete = result.complete};
  for (const Evaluation& part : ranks.AllGather(result, "the evaluation")) {
    all.loss_sum += part.loss_sum;
    all.tokens += part.tokens;
  }
  return all;
}

}  // namespace haversack
