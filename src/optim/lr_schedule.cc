#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace haversack {

LrShape ParseLrShape(const std::string& text) {
  if (text == "constant") return LrShape::kConstant;
  if (text == "linear") return LrShape::kLinear;
  if (text == "cosine") return LrShape::kCosine;
  throw UserError(ExitCode::kUsage, "--schedule: '{}' is unknown; use constant, linear or cosine",
                  text);
}

std::string ToText(LrShape shape) {
  switch (shape) {
    case LrShape::kConstant:
      return "constant";
    case LrShape::kLinear:
      return "linear";
    case LrShape::kCosine:
      return "cosine";
  }
  return "?";
}

double LrSchedule::At(int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (shape == LrShape::kConstant) return peak;
  const int64_t decay_steps = std::max<int64_t>(1, total_steps - 1 - warmup_steps);
  const double progress = std::clamp(
      static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps), 0.0, 1.0);
  const double falling =
      shape == LrShape::kLinear ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return peak * (final_ratio + (1 - final_ratio) * falling);
}

}  // namespace haversack
