// In which order a backward pass completes gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/model_state.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace haversack {

// By instruction of `schedule`: after it, all gradients from this element on (ParamLayout) have
// their final value. Backward passes go from a model's end to its start, as layouts do; a tied
// embedding, which both ends use, comes last.
std::vector<int64_t> CompleteFrom(const Graph& graph, const ParamLayout& layout,
                                  const Schedule& schedule);

}  // namespace haversack
