// What a distributed run will send, how often it will stop for that, and how long it takes.
//
// A model to first order: a whole vector among M ranks costs each 2 (M-1)/M of its bytes over its
// own link, both ways at once, and as many round trips as stages do not fit in flight; small
// messages cost a latency each. Gradients overlap with the last micro-batch's backward pass (two
// thirds of its time); outer steps do not overlap.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist/options.h"

namespace haversack {

// Bits per second from "100Mbit", "1Gbit", "2.5e8"; seconds from "30ms", "0.1s", "50us". Throw
// UserError (exit 2) naming `flag`.
double ParseBandwidth(const std::string& text, const std::string& flag);
double ParseSeconds(const std::string& text, const std::string& flag);

struct NetworkLink {
  double bits_per_second = 1e9;  // of each rank, in each direction
  double latency_seconds = 1e-4;
};

struct PredictedRun {
  int64_t workers = 1;
  int64_t parameters = 0;  // floats of the flat model
  double tokens = 0;       // targets of the whole run
  double tokens_per_sequence = 1;
  double batch = 1;                 // sequences a step over all workers, at the start
  double seconds_per_sequence = 0;  // of one worker's step
  double micro_batch_sequences = 1;
};

// How adloco's batch grows from round to round, up to its largest: not known ahead.
enum class BatchGrowth { kFixed, kLinear, kDoubling };
std::string ToText(BatchGrowth growth);

struct Prediction {
  double steps = 0;
  double syncs = 0;       // blocking exchanges of whole vectors
  double sent_bytes = 0;  // of each rank
  double compute_seconds = 0;
  double wait_seconds = 0;  // for the network
  double seconds() const { return compute_seconds + wait_seconds; }
  double utilisation() const { return seconds() > 0 ? compute_seconds / seconds() : 1; }
};

// `mode` in place of options.mode. `batch_max`: sequences a step over all workers.
Prediction Predict(const DistOptions& options, DistMode mode, const PredictedRun& run,
                   const NetworkLink& link, BatchGrowth growth = BatchGrowth::kFixed,
                   double batch_max = 0);

// Bytes that a rank keeps for `mode` beside the model's state: outer state and message buffers.
int64_t SharedBytes(const DistOptions& options, DistMode mode, int64_t parameters, int workers);

}  // namespace haversack
