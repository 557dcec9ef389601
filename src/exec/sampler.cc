#include "exec/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace haversack {
namespace {

void CheckLogits(std::span<const float> logits, float best) {
  if (std::isfinite(best) &&
      std::none_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })) {
    return;
  }
  throw UserError(
      ExitCode::kUsage,
      "the model's logits are not finite numbers: its weights hold NaN or infinity, or are "
      "too large for f32");
}

}  // namespace

int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options,
                    uint64_t position) {
  const auto best = std::max_element(logits.begin(), logits.end());
  CheckLogits(logits, *best);
  if (options.temperature == 0 || options.top_p == 0) {
    return static_cast<int32_t>(best - logits.begin());
  }
  // In double, relative to the best: no temperature makes it overflow.
  std::vector<double> weight(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weight[i] = std::exp((static_cast<double>(logits[i]) - *best) / options.temperature);
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // By logit: a high temperature makes equal weights of different logits.
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  size_t kept = 0;
  double sum = 0;
  // None without weight, even where rounding leaves the sum below the share.
  while (kept < order.size() && weight[order[kept]] > 0 &&
         (kept == 0 || sum < options.top_p * total)) {
    sum += weight[order[kept++]];
  }
  const RandomStream random({.seed = options.seed, .purpose = RandomPurpose::kSampling});
  double left = random.Uniform(position) * sum;
  for (size_t i = 0; i < kept; ++i) {
    left -= weight[order[i]];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace haversack
