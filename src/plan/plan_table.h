// What a plan does with each kind of value, for people and programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/cost_profile.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace haversack {

struct PlanRow {
  std::string kind;    // "gate_up"
  std::string action;  // "int8"
  int values = 0;      // layers, for values of blocks
  int64_t stored_bytes = 0;
  int64_t saved_bytes = 0;  // against keeping them
  double seconds = 0;       // of computing again, encoding and decoding, in a micro-batch
};

// One row for each kind of value and action, in the order of the graph. Values that one
// element-wise pass rebuilds and row statistics are the same in every plan and left out.
std::vector<PlanRow> TabulatePlan(const Graph& graph, const Plan& plan, const Schedule& schedule,
                                  const CostProfile& profile);

}  // namespace haversack
