// Held-out loss of a model in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "data/dataset.h"
#include "dist/communicator.h"
#include "exec/executor.h"
#include "schedule/schedule.h"

namespace haversack {

struct Evaluation {
  double loss_sum = 0;   // -log p over all targets, natural logarithm
  int64_t tokens = 0;    // targets
  bool complete = true;  // false: told to stop; the sum is of a part and means nothing
  double loss() const { return loss_sum / static_cast<double>(tokens); }
};

// The view of a batch that a schedule takes; `batch` must outlive it.
MicroBatch ViewOf(const Batch& batch, float loss_scale, double* loss_sum);

// Over every sequence of `data` once, in the corpus's order; `schedule` is of mode kEvaluate. The
// ranks, which hold the same model, take turns at micro-batches of the same size, and each has the
// result. `stop` is asked between micro-batches.
Evaluation Evaluate(const Dataset& data, const Schedule& schedule, Executor& executor,
                    const Communicator& ranks, const std::function<bool()>& stop = {});

// The same with one executor a thread, each with a region of its own and a micro-batch of its own:
// for a small model the regions of the ops are too short to pay for entering them. The sum is
// Evaluate's to the bit wherever a product's rounding does not depend on the library's threads.
Evaluation EvaluateInParallel(const Dataset& data, const Schedule& schedule,
                              std::span<Executor> executors);

}  // namespace haversack
