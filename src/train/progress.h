// Where a run stands; the part of a checkpoint that is not tensors.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

namespace haversack {

struct Progress {
  int64_t step = 0;     // optimizer steps done, skipped ones included
  int64_t updates = 0;  // steps that changed the weights: Adam's t
  uint64_t cursor = 0;  // sequences drawn
  int64_t tokens = 0;   // targets learned from
  int64_t skipped = 0;  // non-finite steps
  int64_t bad_in_row = 0;
  std::optional<int64_t>
      projection_epoch;  // of low-rank training; none: no projection was made yet
  // The last evaluation of the held-out data: a run that is stopped in it does it again.
  std::optional<int64_t> evaluated_step;
  std::optional<double> evaluated_loss;  // none: not finite
  // The best checkpoint: of those evaluated at their own step, the one with the lowest loss.
  std::optional<double> best_loss;
  std::optional<int64_t> best_step;
};

nlohmann::json ToJson(const Progress& progress);
// Throws nlohmann::json::exception where a field is missing or of the wrong type.
Progress ProgressFromJson(const nlohmann::json& json);

}  // namespace haversack
