#include "exec/model_state.h"

#include <algorithm>

#include "base/bytes.h"
#include "kernels/adamw_8bit.h"
#include "kernels/low_rank_adamw.h"

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
    grad_offset.push_back(grad_total);
    grad_total += AlignedFloats(param.gradient_count());
  }
  for (const ProjectedValue& value : graph.projections) {
    basis_offset.push_back(basis_total);
    basis_total += AlignedFloats(value.spec.basis_floats());
    workspace_total = std::max({workspace_total, AlignedFloats(LowRankScratch(value.spec)),
                                AlignedFloats(RefreshSpace::Floats(value.spec))});
  }
}

MomentLayout::MomentLayout(const Graph& graph, MomentType type) {
  for (const Param& param : graph.params) {
    const bool projected = param.projection >= 0;
    const bool low_rank = projected && !graph.projections[param.projection].spec.full_moments;
    Slot slot = {.type = projected || param.count() < kLeast8Bit ? MomentType::kF32 : type,
                 .count = low_rank ? param.gradient_count() : param.count(),
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

ModelState TakeModelState(Arena& arena, const ParamLayout& layout, const MomentLayout* moments,
                          bool gradients) {
  const auto take = [&](const char* name, int64_t floats) {
    return reinterpret_cast<float*>(arena.Take(name, ParamLayout::BytesOf(floats)));
  };
  ModelState state;
  state.weights = take("weights", layout.total);
  if (gradients) state.grads = take("gradients", layout.grad_total);
  if (moments != nullptr) {
    state.m = take("first moments", moments->total);
    state.v = take("second moments", moments->total);
  }
  state.basis = take("projections", layout.basis_total);
  state.workspace = take("projections' workspace", layout.workspace_total);
  return state;
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
  for (size_t i = 0; i < graph.projections.size(); ++i) {
    const ProjectedValue& projected = graph.projections[i];
    if (projected.spec.basis_floats() == 0) continue;
    tensors.push_back(
        {.name = "basis." + graph.values[projected.x].name,
         .dtype = "F32",
         .count = projected.spec.basis_floats(),
         .data = state.basis == nullptr ? nullptr : state.basis + layout.basis_offset[i]});
  }
  return tensors;
}

}  // namespace haversack
