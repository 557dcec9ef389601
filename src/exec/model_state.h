// Flat f32 storage of a model's parameters and of what training keeps for each of them.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace haversack {

// Where each parameter lies in a flat array, in floats; every parameter begins on a 64-byte
// boundary and the padding between them stays zero.
struct ParamLayout {
  std::vector<int64_t> offset;
  int64_t total = 0;

  explicit ParamLayout(const Graph& graph);
  int64_t bytes() const { return total * static_cast<int64_t>(sizeof(float)); }
};

// Not owned; `grads` is null under a fused update and in evaluation, the moments are null in
// evaluation.
struct ModelState {
  float* weights = nullptr;
  float* grads = nullptr;
  float* m = nullptr;
  float* v = nullptr;
};

}  // namespace haversack
