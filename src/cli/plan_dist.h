// The part of `plan` that predicts a run over several ranks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dist/prediction.h"

namespace haversack {

struct DistPlanFlags {
  std::vector<int64_t> workers = {1};
  std::string bandwidth = "1Gbit";
  std::string latency = "1ms";

  NetworkLink Link() const {
    return {.bits_per_second = ParseBandwidth(bandwidth, "--bandwidth"),
            .latency_seconds = ParseSeconds(latency, "--latency")};
  }
};

// One way of running, for a number of workers.
struct PredictedMode {
  std::string name;
  int64_t workers = 1;
  Prediction prediction;
};

// ddp, diloco, and adloco for a batch that stays, grows evenly or doubles, for each number of
// workers. `run`: with workers left open.
std::vector<PredictedMode> PredictModes(const DistOptions& options, PredictedRun run,
                                        const DistPlanFlags& flags);

nlohmann::json ToJson(const std::vector<PredictedMode>& modes);
void Print(const std::vector<PredictedMode>& modes, const DistPlanFlags& flags, double tokens);

}  // namespace haversack
