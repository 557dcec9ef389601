// Learning rate over a run: linear warm-up, then constant, linear or cosine decay.
#pragma once

#include <cstdint>
#include <string>

namespace haversack {

enum class LrShape { kConstant, kLinear, kCosine };

// Throws UserError (exit 2) naming the known shapes.
LrShape ParseLrShape(const std::string& text);
std::string ToText(LrShape shape);

struct LrSchedule {
  LrShape shape = LrShape::kCosine;
  double peak = 1e-4;
  double final_ratio = 0.1;  // of the peak, at the end of a decay
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  // Of optimizer step `step`, counted from 0. During warm-up (step + 1) / warmup_steps of the peak,
  // so that no step is wasted at a rate of zero; the last step has the final rate.
  double At(int64_t step) const;
};

}  // namespace haversack
