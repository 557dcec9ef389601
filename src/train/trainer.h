// One training run, from the options to the exported model.
#pragma once

#include "train/options.h"

namespace haversack {

// Runs to the end, or to a signal (then a checkpoint is saved and nothing is exported). Throws
// UserError with the exit code of what went wrong.
void Train(const TrainOptions& options);

}  // namespace haversack
