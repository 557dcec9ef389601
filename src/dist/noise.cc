#include "dist/noise.h"

#include <algorithm>

namespace haversack {

std::optional<NoiseSample> MeasureNoise(std::span<const GradientPart> parts) {
  double total = 0;
  int64_t count = 0;
  size_t width = 0;
  for (const GradientPart& part : parts) {
    if (part.samples <= 0) continue;
    total += part.samples;
    count += 1;
    width = part.gradient.size();
  }
  if (count < 2) return std::nullopt;
  std::vector<double> mean(width, 0.0);
  for (const GradientPart& part : parts) {
    if (part.samples <= 0) continue;
    for (size_t i = 0; i < width; ++i) mean[i] += part.samples / total * part.gradient[i];
  }
  double norm2 = 0;
  for (const double x : mean) norm2 += x * x;
  NoiseSample sample;
  for (const GradientPart& part : parts) {
    if (part.samples <= 0) continue;
    double distance2 = 0, along = 0;
    for (size_t i = 0; i < width; ++i) {
      const double difference = part.gradient[i] - mean[i];
      distance2 += difference * difference;
      along += difference * mean[i];
    }
    const double weight = part.samples / static_cast<double>(count - 1);
    sample.t += weight * distance2;
    if (norm2 > 0) sample.t_par += weight * along * along / norm2;
  }
  sample.g2 = norm2 - sample.t / total;
  return sample;
}

void NoiseAverage::Add(const NoiseSample& sample) {
  // The ratio of two averages with the same weights does not need those weights to sum to 1.
  const auto add = [](double& average, double value) {
    average = kNoiseMemory * average + (1 - kNoiseMemory) * value;
  };
  add(t, sample.t);
  add(t_par, sample.t_par);
  add(g2, sample.g2);
}

std::optional<double> NoiseAverage::Request(BatchTest test) const {
  if (!(g2 > 0)) return std::nullopt;
  if (test == BatchTest::kNorm) return t / (kNormEta * kNormEta * g2);
  const double along = t_par / (kInnerTheta * kInnerTheta * g2);
  const double across = (t - t_par) / (kOrthogonalNu * kOrthogonalNu * g2);
  return std::max(along, across);
}

}  // namespace haversack
