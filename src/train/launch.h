// Starts a training run: alone, or as one rank of several.
#pragma once

#include "train/options.h"

namespace haversack {

// Runs to the end, or to a signal (then a checkpoint is saved and nothing is exported). Throws
// UserError with the exit code of what went wrong. With --dist every rank of the run calls it; a
// lost peer, and what goes wrong on one rank while others compute, ends the process and all ranks.
void Train(const TrainOptions& options);

}  // namespace haversack
