// From the batch that is asked for to the one that is run.
#pragma once

#include <cstdint>
#include <vector>

namespace haversack {

// 1, 2, 3, 4, 6, 8, 12, ...: the sizes up to `most` that micro-batches are planned for.
std::vector<int64_t> PlannedSizes(int64_t most);

// Sequences that a worker really runs a step where `wanted` are asked for and memory allows
// micro-batches of up to `micro_batch`: up to that the next planned size; up to twice that the
// micro-batch (accumulating two would halve the speed for little); above, whole micro-batches.
int64_t UsedBatch(double wanted, int64_t micro_batch);

}  // namespace haversack
