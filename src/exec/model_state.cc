#include "exec/model_state.h"

#include "base/bytes.h"

namespace haversack {

ParamLayout::ParamLayout(const Graph& graph) {
  for (const Param& param : graph.params) {
    offset.push_back(total);
    total += static_cast<int64_t>(AlignUp(param.count(), 16));
  }
}

}  // namespace haversack
