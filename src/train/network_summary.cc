#include "train/network_summary.h"

#include <algorithm>

#include "base/bytes.h"

namespace haversack {
namespace {

// "1.2 MiB" where all ranks agree, "1.2 MiB to 3 MiB" where they do not.
std::string Bytes(const std::vector<Traffic>& ranks, int64_t Traffic::*field) {
  const auto [least, most] =
      std::minmax_element(ranks.begin(), ranks.end(),
                          [&](const Traffic& a, const Traffic& b) { return a.*field < b.*field; });
  const std::string low = FormatBytes(static_cast<uint64_t>((*least).*field));
  const std::string high = FormatBytes(static_cast<uint64_t>((*most).*field));
  return low == high ? low : low + " to " + high;
}

}  // namespace

std::vector<std::string> NetworkSummary(const TrainOptions& options, const PredictedRun& run,
                                        const std::vector<Traffic>& ranks, double seconds) {
  double waited = 0;
  for (const Traffic& rank : ranks) waited = std::max(waited, rank.wait_seconds);
  std::vector<std::string> lines = {fmt::format(
      "network: {} syncs; each rank sent {} and received {}, and waited up to {:.2f} s of {:.2f} s",
      ranks[0].syncs, Bytes(ranks, &Traffic::sent_bytes), Bytes(ranks, &Traffic::received_bytes),
      waited, seconds)};
  const Prediction predicted = Predict(options.dist, options.dist.mode, run, {});
  const bool adaptive = options.dist.mode == DistMode::kAdloco;
  lines.push_back(fmt::format("predicted{}: {:.0f} syncs, {} sent by each rank",
                              adaptive ? " for a batch that stays as it is" : "", predicted.syncs,
                              FormatBytes(static_cast<uint64_t>(predicted.sent_bytes))));
  return lines;
}

}  // namespace haversack
