#include "ops/rope_table.h"

#include <cmath>
#include <numbers>

namespace haversack {
namespace {

float ScaleFrequency(float inverse, const RopeScaling& scaling) {
  if (const auto* linear = std::get_if<LinearRopeScaling>(&scaling)) {
    return static_cast<float>(inverse / linear->factor);
  }
  if (const auto* llama3 = std::get_if<Llama3RopeScaling>(&scaling)) {
    const double wavelength = 2 * std::numbers::pi / inverse;
    const double longest = llama3->original_max_positions / llama3->low_freq_factor;
    const double shortest = llama3->original_max_positions / llama3->high_freq_factor;
    if (wavelength > longest) return static_cast<float>(inverse / llama3->factor);
    if (wavelength < shortest) return inverse;
    const double smooth = (llama3->original_max_positions / wavelength - llama3->low_freq_factor) /
                          (llama3->high_freq_factor - llama3->low_freq_factor);
    return static_cast<float>((1 - smooth) * inverse / llama3->factor + smooth * inverse);
  }
  return inverse;
}

}  // namespace

RopeTable::RopeTable(int64_t positions, int64_t head_dim, double theta, const RopeScaling& scaling)
    : positions_(positions), cos_(positions * (head_dim / 2)), sin_(cos_.size()) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    // f32 frequencies and angles, as transformers computes them: at position 8000 the rounding of
    // the angle is visible, and agreeing with it matters more than beating it.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float inverse =
        ScaleFrequency(1.0f / std::pow(static_cast<float>(theta), exponent), scaling);
    for (int64_t p = 0; p < positions; ++p) {
      const float angle = static_cast<float>(p) * inverse;
      cos_[p * half + i] = std::cos(angle);
      sin_[p * half + i] = std::sin(angle);
    }
  }
}

}  // namespace haversack
