// How the ranks of a run train one model, as the command line gives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace haversack {

enum class DistMode { kNone, kDdp, kDiloco, kAdloco };
// Throws UserError (exit 2) naming the known modes.
DistMode ParseDistMode(const std::string& text);
std::string ToText(DistMode mode);

// The rate of a batch b against that of the first batch b0: times (b / b0)^0, ^0.5 or ^1.
enum class LrScaling { kNone, kSqrt, kLinear };
LrScaling ParseLrScaling(const std::string& text);
std::string ToText(LrScaling scaling);

// What asks for a larger batch (dist/noise.h).
enum class BatchTest { kNorm, kAugmented };
BatchTest ParseBatchTest(const std::string& text);
std::string ToText(BatchTest test);

struct DistOptions {
  DistMode mode = DistMode::kNone;
  double deadline_seconds = 600;  // of every wait for a peer
  std::string transport = "f32";  // see WireFormat

  // diloco and adloco
  int64_t inner_steps = 50;  // optimizer steps between outer steps
  double outer_lr = 0.7;
  double outer_momentum = 0.9;

  // adloco
  int64_t trainers = 1;
  int64_t merge_every = 0;           // rounds between merges; 0: at the end only
  std::optional<int64_t> batch_max;  // sequences a step over all ranks
  BatchTest batch_test = BatchTest::kNorm;
  LrScaling lr_scaling = LrScaling::kSqrt;

  bool on() const { return mode != DistMode::kNone; }
  // Ranks take steps of their own between outer steps.
  bool local_steps() const { return mode == DistMode::kDiloco || mode == DistMode::kAdloco; }
};

}  // namespace haversack
