// How large a batch the gradient's noise asks for. Gradients g_m, each the mean over n_m samples at
// the same weights, from M workers (or micro-batches of one); N = sum n_m, gbar = sum n_m g_m / N:
//
//   t  = sum n_m |g_m - gbar|^2 / (M - 1)     estimates the trace of the covariance of one sample
//   G2 = |gbar|^2 - t / N                     estimates the squared norm of the true gradient
//
// both without bias, whatever the n_m (McCandlish et al., arXiv 1812.06162, for unequal parts). The
// norm test (Byrd et al., Math. Program. 134, 2012) asks for a batch of t / (eta^2 G2). The
// augmented test asks separately for the noise along the gradient and across it (Bollapragada et
// al., SIAM J. Optim. 28, 2018):
//
//   t_par = sum n_m <g_m - gbar, gbar>^2 / ((M - 1) |gbar|^2),   t_orth = t - t_par
//   max(t_par / (theta^2 G2), t_orth / (nu^2 G2))
//
// One round says little: t and G2 are averaged over rounds before their ratio is taken.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dist/options.h"

namespace haversack {

inline constexpr double kNormEta = 0.8;
inline constexpr double kInnerTheta = 0.5;
inline constexpr double kOrthogonalNu = 0.62;
inline constexpr double kNoiseMemory = 0.8;  // of the averages, a round

struct NoiseSample {
  double t = 0, t_par = 0, g2 = 0;
};

struct GradientPart {
  std::span<const float> gradient;  // or a sketch; all of one length and seed
  double samples = 0;               // sequences that it is the mean over; 0: left out
};

// Nothing where fewer than two parts have samples.
std::optional<NoiseSample> MeasureNoise(std::span<const GradientPart> parts);

// Averages over rounds. Exchanged between ranks as it is.
struct NoiseAverage {
  double t = 0, t_par = 0, g2 = 0;

  void Add(const NoiseSample& sample);
  // The batch asked for, in samples; nothing while the averaged G2 is not positive.
  std::optional<double> Request(BatchTest test) const;
};

}  // namespace haversack
