#include "dist/prediction.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "dist/outer_step.h"
#include "dist/owner_exchange.h"
#include "dist/sketch.h"

namespace haversack {
namespace {

double ParseQuantity(const std::string& text, const std::string& flag,
                     const std::vector<std::pair<std::string, double>>& units,
                     const char* example) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit(end);
  for (const auto& [name, factor] : units) {
    if (end != text.c_str() && unit == name && value > 0 && std::isfinite(value)) {
      return value * factor;
    }
  }
  throw UserError(ExitCode::kUsage, "{} {}: not understood; write it as {}", flag, text, example);
}

// Headers of a round's end and a step's start, as src/train exchanges them.
constexpr double kStepHeaderBytes = 40;
constexpr double kRoundHeaderBytes = 48 + 8 + 48;
constexpr double kRecordBytes = 48;
constexpr double kDepth = 4;

// One exchange of a whole vector.
struct Exchange {
  Exchange(int64_t parameters, int64_t workers, const WireFormat& wire, const NetworkLink& link) {
    if (workers == 1) return;
    const ExchangeShape shape(parameters, static_cast<int>(workers), wire);
    const auto m = static_cast<double>(workers);
    const double chunk = static_cast<double>(wire.Bytes(shape.chunk));
    const double chunks = std::ceil(static_cast<double>(parameters) / shape.chunk);
    bytes = 2 * (m - 1) / m * chunks * chunk;
    const double transfer = 8 * bytes / link.bits_per_second;
    const double trips = static_cast<double>(shape.stages) / kDepth * 2 * link.latency_seconds;
    seconds = std::max(transfer, trips) + 2 * link.latency_seconds;
  }
  double bytes = 0;  // sent by each rank
  double seconds = 0;
};

struct Sum {
  Prediction prediction;
  double others;  // ranks that headers go to

  void Compute(double seconds) { prediction.compute_seconds += seconds; }
  void Small(double bytes, double messages, const NetworkLink& link) {
    if (others == 0) return;
    prediction.sent_bytes += bytes * others;
    prediction.wait_seconds +=
        messages * link.latency_seconds + 8 * bytes * others / link.bits_per_second;
  }
  void Vector(const Exchange& exchange, double hidden_seconds) {
    if (others == 0) return;
    prediction.syncs += 1;
    prediction.sent_bytes += exchange.bytes;
    prediction.wait_seconds += std::max(0.0, exchange.seconds - hidden_seconds);
  }
};

}  // namespace

double ParseBandwidth(const std::string& text, const std::string& flag) {
  return ParseQuantity(
      text, flag, {{"", 1}, {"bit", 1}, {"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}}, "100Mbit");
}

double ParseSeconds(const std::string& text, const std::string& flag) {
  return ParseQuantity(text, flag, {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}}, "30ms");
}

std::string ToText(BatchGrowth growth) {
  switch (growth) {
    case BatchGrowth::kFixed:
      return "fixed batch";
    case BatchGrowth::kLinear:
      return "batch + first batch a round";
    case BatchGrowth::kDoubling:
      return "batch x 2 a round";
  }
  return "?";
}

Prediction Predict(const DistOptions& options, DistMode mode, const PredictedRun& run,
                   const NetworkLink& link, BatchGrowth growth, double batch_max) {
  const auto workers = static_cast<double>(run.workers);
  Sum sum = {.prediction = {}, .others = workers - 1};
  const bool alone = run.workers == 1;
  const Exchange exchange(run.parameters, run.workers,
                          alone ? WireFormat() : WireFormat::Parse(options.transport), link);
  const auto step_seconds = [&](double batch) {
    return std::ceil(batch / workers) * run.seconds_per_sequence;
  };
  double tokens = 0;
  if (mode == DistMode::kDdp) {
    const double steps = std::ceil(run.tokens / (run.batch * run.tokens_per_sequence) - 1e-9);
    const double share = std::ceil(run.batch / workers);
    const double hidden =
        2.0 / 3 * std::min(share, run.micro_batch_sequences) * run.seconds_per_sequence;
    sum.prediction.steps = 1;
    sum.Compute(step_seconds(run.batch));
    sum.Small(kStepHeaderBytes, 2, link);
    sum.Vector(exchange, hidden);
    Prediction& all = sum.prediction;
    for (double* x :
         {&all.steps, &all.syncs, &all.sent_bytes, &all.compute_seconds, &all.wait_seconds}) {
      *x *= steps;
    }
    return all;
  }
  double batch = run.batch;
  // Steps add up to the run's tokens to rounding only.
  while (run.tokens - tokens > 1e-9 * run.tokens) {
    const double left = run.tokens - tokens;
    const double step_tokens = batch * run.tokens_per_sequence;
    const double steps = std::min(static_cast<double>(options.inner_steps),
                                  std::max(1.0, std::ceil(left / step_tokens - 1e-9)));
    tokens += steps * step_tokens;
    sum.prediction.steps += steps;
    sum.Compute(steps * step_seconds(batch));
    sum.Small(kRoundHeaderBytes + kRecordBytes * steps, 3, link);
    if (mode == DistMode::kAdloco) sum.Small(sizeof(Sketch), 2, link);
    sum.Vector(exchange, 0);
    if (growth == BatchGrowth::kLinear) batch += run.batch;
    if (growth == BatchGrowth::kDoubling) batch *= 2;
    if (mode != DistMode::kAdloco) batch = run.batch;
    batch = std::max(run.batch, std::min(batch, batch_max));
  }
  return sum.prediction;
}

int64_t SharedBytes(const DistOptions& options, DistMode mode, int64_t parameters, int workers) {
  const auto wire = [&](int ranks) {
    return ranks == 1 ? WireFormat() : WireFormat::Parse(options.transport);
  };
  if (mode == DistMode::kNone) return 0;
  if (mode == DistMode::kDdp) {
    return workers == 1 ? 0 : OwnerExchange::BufferBytes(parameters, workers, wire(workers));
  }
  const bool merges = mode == DistMode::kAdloco && options.trainers > 1;
  int64_t outer = 0, merge = 0;
  for (int ranks = merges ? 1 : workers; ranks <= workers; ++ranks) {
    outer = std::max(outer, OuterStep::Bytes(parameters, ranks, wire(ranks)));
    if (merges) {
      merge = std::max(merge, OwnerExchange::BufferBytes(parameters, ranks, WireFormat()));
    }
  }
  return static_cast<int64_t>(AlignUp(outer, 64)) + merge;
}

}  // namespace haversack
