// One training run, from the options to the exported model.
#pragma once

#include "dist/communicator.h"
#include "train/options.h"

namespace haversack {

// Called by every rank of `world`, which may be one process alone. Throws as Train does (launch.h).
void TrainOn(const TrainOptions& options, const Communicator& world);

}  // namespace haversack
