// What low-rank training does and saves, for people and programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "schedule/plan.h"
#include "train/options.h"

namespace haversack {

// Against the same run with AdamW, in bytes; negative: it takes more.
struct LowRankSavings {
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t activations = 0;  // minus the projections that the plan stores: inputs are rebuilt anyway
  int64_t projections = 0;  // minus bases and workspace
};

LowRankSavings SavingsOf(const Graph& graph, const Plan& plan, const TrainOptions& options);

// Lines for the log and `plan`; none without projections.
std::vector<std::string> DescribeLowRank(const Graph& graph, const Plan& plan,
                                         const TrainOptions& options);
nlohmann::json LowRankToJson(const Graph& graph, const Plan& plan, const TrainOptions& options);

}  // namespace haversack
