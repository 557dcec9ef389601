#include "train/evaluate.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/threads.h"

namespace haversack {
namespace {

// Micro-batches that are handed out in one parallel region, a thread: enough that threads seldom
// wait for the last one, few enough that their losses are a handful of numbers.
constexpr uint64_t kMicroBatchesPerThread = 64;

// The sum of one micro-batch is a number of its own, so that the total does not depend on which
// thread had it.
struct PartOfSum {
  double loss = 0;
  int64_t targets = 0;
};

PartOfSum EvaluateMicroBatch(const Dataset& data, const Schedule& schedule, Executor& executor,
                             uint64_t first, Batch& batch) {
  PartOfSum part;
  data.FillInOrder(first, schedule.shape.sequences, batch);
  part.targets = batch.valid_targets;
  if (part.targets > 0) executor.Run(schedule, ViewOf(batch, 1, &part.loss), false);
  return part;
}

void Add(const PartOfSum& part, Evaluation& result) {
  result.loss_sum += part.loss;
  result.tokens += part.targets;
}

}  // namespace

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
    Add(EvaluateMicroBatch(data, schedule, executor, first, batch), result);
  }
  if (ranks.alone()) return result;
  Evaluation all = {.complete = result.complete};
  for (const Evaluation& part : ranks.AllGather(result, "the evaluation")) {
    all.loss_sum += part.loss_sum;
    all.tokens += part.tokens;
  }
  return all;
}

Evaluation EvaluateInParallel(const Dataset& data, const Schedule& schedule,
                              std::span<Executor> executors) {
  HAVERSACK_CHECK(static_cast<int>(executors.size()) >= NumThreads(), "{} executors, {} threads",
                  executors.size(), NumThreads());
  Evaluation result;
  const auto sequences = static_cast<uint64_t>(schedule.shape.sequences);
  const uint64_t total = (data.sequences() + sequences - 1) / sequences;
  std::vector<Batch> batches(executors.size());
  std::vector<PartOfSum> parts(kMicroBatchesPerThread * executors.size());
  for (uint64_t begin = 0; begin < total; begin += parts.size()) {
    const uint64_t count = std::min<uint64_t>(parts.size(), total - begin);
    ParallelTasks(static_cast<int64_t>(count), [&](int64_t task, int thread) {
      const uint64_t first = (begin + static_cast<uint64_t>(task)) * sequences;
      parts[task] = EvaluateMicroBatch(data, schedule, executors[thread], first, batches[thread]);
    });
    for (uint64_t i = 0; i < count; ++i) Add(parts[i], result);
  }
  return result;
}

}  // namespace haversack
