// What a distributed run says of its network at the end: measured beside predicted.
#pragma once

#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/prediction.h"
#include "train/options.h"

namespace haversack {

// `ranks`: of all ranks, since this process began, in which `seconds` of steps learned from
// run.tokens.
std::vector<std::string> NetworkSummary(const TrainOptions& options, const PredictedRun& run,
                                        const std::vector<Traffic>& ranks, double seconds);

}  // namespace haversack
