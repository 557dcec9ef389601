// Flat f32 storage of a model's parameters and of what training keeps for each of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/arena.h"
#include "graph/graph.h"

namespace haversack {

// Where each parameter lies in a flat array, in floats, where its gradient lies in another, and
// where each projection keeps what it keeps from epoch to epoch; everything begins on a 64-byte
// boundary and the padding between stays zero.
struct ParamLayout {
  std::vector<int64_t> offset;  // by ParamId
  int64_t total = 0;
  std::vector<int64_t> grad_offset;  // by ParamId; as `offset` where no parameter is projected
  int64_t grad_total = 0;
  std::vector<int64_t> basis_offset;  // by index of Graph::projections
  int64_t basis_total = 0;
  int64_t workspace_total = 0;  // that one projection at a time works in

  explicit ParamLayout(const Graph& graph);
  static int64_t BytesOf(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }
  int64_t bytes() const { return BytesOf(total); }
  int64_t grad_bytes() const { return BytesOf(grad_total); }
  int64_t projection_bytes() const { return BytesOf(basis_total + workspace_total); }
};

enum class MomentType {
  kF32,
  kInt8,  // block-wise, kernels/adamw_8bit.h; parameters of few elements and
          // those whose gradients are projected stay f32
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
  float* weights = nullptr;    // by ParamLayout
  float* grads = nullptr;      // by ParamLayout
  float* basis = nullptr;      // by ParamLayout; null without projections
  float* workspace = nullptr;  // workspace_total floats
  float* m = nullptr;          // by MomentLayout
  float* v = nullptr;          // by MomentLayout
};

// Takes the regions of a state: moments where `moments` is given, gradients where wanted.
ModelState TakeModelState(Arena& arena, const ParamLayout& layout, const MomentLayout* moments,
                          bool gradients);

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
