#include "exec/model_state.h"

#include "base/bytes.h"
#include "kernels/adamw_8bit.h"

namespace haversack {
namespace {

// Fewer elements are held in f32, as the authors of 8-bit optimizers do: norms and biases.
constexpr int64_t kLeast8Bit = 4096;

int64_t AlignedFloats(int64_t count) { return static_cast<int64_t>(AlignUp(count, 16)); }

}  // namespace

ParamLayout::ParamLayout(const Graph& graph) {
  for (const Param& param : graph.params) {
    offset.push_back(total);
    total += AlignedFloats(param.count());
  }
}

MomentLayout::MomentLayout(const Graph& graph, MomentType type) {
  for (const Param& param : graph.params) {
    Slot slot = {.type = param.count() < kLeast8Bit ? MomentType::kF32 : type,
                 .count = param.count(),
                 .offset = total};
    if (slot.type == MomentType::kInt8) {
      slot.scales = slot.offset + AlignedFloats((slot.count + 3) / 4);
      total = slot.scales + AlignedFloats(MomentBlocks(slot.count));
    } else {
      total += AlignedFloats(slot.count);
    }
    slots.push_back(slot);
  }
}

std::vector<StateTensor> StateTensors(const Graph& graph, const ParamLayout& layout,
                                      const MomentLayout& moments, const ModelState& state) {
  std::vector<StateTensor> tensors;
  const auto add = [&](const char* part, size_t p, const char* dtype, int64_t count, float* base,
                       int64_t offset) {
    tensors.push_back({.name = part + graph.params[p].name,
                       .dtype = dtype,
                       .count = count,
                       .data = base == nullptr ? nullptr : base + offset});
  };
  const size_t params = graph.params.size();
  for (size_t p = 0; p < params; ++p) {
    add("weights.", p, "F32", graph.params[p].count(), state.weights, layout.offset[p]);
  }
  const auto add_moment = [&](const char* part, const char* scale_part, float* base) {
    for (size_t p = 0; p < params; ++p) {
      const MomentLayout::Slot& slot = moments.slots[p];
      const bool bytes = slot.type == MomentType::kInt8;
      add(part, p, bytes ? "U8" : "F32", slot.count, base, slot.offset);
      if (bytes) add(scale_part, p, "F32", MomentBlocks(slot.count), base, slot.scales);
    }
  };
  add_moment("m.", "m_scale.", state.m);
  add_moment("v.", "v_scale.", state.v);
  return tensors;
}

}  // namespace haversack
