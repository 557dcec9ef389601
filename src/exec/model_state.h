// Flat f32 storage of a model's parameters and of what training keeps for each of them.
#pragma once

#include <cstdint>
#include <string>
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

enum class MomentType {
  kF32,
  kInt8,  // block-wise, kernels/adamw_8bit.h; parameters of few elements stay f32
};

// Where the optimizer's first moments lie in one flat array, and in the same places its second
// moments in another.
struct MomentLayout {
  struct Slot {
    MomentType type = MomentType::kF32;
    int64_t count = 0;   // elements
    int64_t offset = 0;  // in floats: the elements, or of kInt8 their bytes
    int64_t scales = 0;  // in floats, of kInt8
  };
  std::vector<Slot> slots;  // by ParamId
  int64_t total = 0;        // floats

  MomentLayout(const Graph& graph, MomentType type);
  int64_t bytes() const { return total * static_cast<int64_t>(sizeof(float)); }
};

// Not owned; `grads` is null under a fused update and in evaluation, the moments are null in
// evaluation.
struct ModelState {
  float* weights = nullptr;  // by ParamLayout
  float* grads = nullptr;    // by ParamLayout
  float* m = nullptr;        // by MomentLayout
  float* v = nullptr;        // by MomentLayout
};

// A tensor of the training state as a checkpoint holds it.
struct StateTensor {
  std::string name;   // "weights.NAME", "m.NAME", "v.NAME", "m_scale.NAME", ...
  std::string dtype;  // "F32" or "U8"
  int64_t count = 0;  // elements
  void* data = nullptr;

  int64_t bytes() const { return count * (dtype == "U8" ? 1 : 4); }
};

// Everything that goes into a checkpoint, in its order. Addresses are those of `state`, which may
// be empty where only names and sizes are wanted.
std::vector<StateTensor> StateTensors(const Graph& graph, const ParamLayout& layout,
                                      const MomentLayout& moments, const ModelState& state);

}  // namespace haversack
