// AdamWOptimizer's part for weights whose gradients are projected.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/low_rank_adamw.h"
#include "optim/adamw_optimizer.h"

namespace haversack {
namespace {

// Subspace iterations of a principal basis at each epoch, from where the last one left it; and of
// the first one, which starts from random directions.
constexpr int kIterations = 2;
constexpr int kColdIterations = 4;

}  // namespace

MomentRule ParseMomentRule(const std::string& text) {
  if (text == "keep") return MomentRule::kKeep;
  if (text == "reset") return MomentRule::kReset;
  if (text == "transfer") return MomentRule::kTransfer;
  throw UserError(ExitCode::kUsage, "--moments: '{}' is unknown; use keep, reset or transfer",
                  text);
}

std::string ToText(MomentRule rule) {
  switch (rule) {
    case MomentRule::kKeep:
      return "keep";
    case MomentRule::kReset:
      return "reset";
    case MomentRule::kTransfer:
      return "transfer";
  }
  return "?";
}

void AdamWOptimizer::UpdateProjected(ParamId param, float* grad, AdamWStep step) {
  const Param& weight = graph_.params[param];
  const ProjectionSpec& spec = graph_.projections[weight.projection].spec;
  const MomentLayout::Slot& slot = moments_.slots[param];
  const int64_t epoch = projections_.EpochOf(step_ - 1);
  if (projections_.moments == MomentRule::kReset && !spec.full_moments) {
    const int64_t since = step_ - epoch * projections_.refresh;
    step.bias_correction1 = 1 - std::pow(step.beta1, static_cast<double>(since));
    step.bias_correction2 = 1 - std::pow(step.beta2, static_cast<double>(since));
  }
  LowRankAdamWUpdate({.weight = state_.weights + layout_.offset[param],
                      .grad = grad,
                      .m = state_.m + slot.offset,
                      .v = state_.v + slot.offset,
                      .rows = weight.rows},
                     {.spec = spec,
                      .epoch = epoch,
                      .basis = Basis(weight.projection),
                      .scratch = state_.workspace},
                     projections_.scale, step);
}

void AdamWOptimizer::RefreshProjection(int index, int64_t old_epoch, int64_t epoch, const float* x,
                                       int64_t tokens) {
  const ProjectionSpec& spec = graph_.projections[index].spec;
  const RefreshSpace space = RefreshSpace::At(spec, state_.workspace);
  const bool cold = old_epoch < 0;
  const bool transfers = projections_.moments == MomentRule::kTransfer && !cold;
  if (spec.stored() && transfers && !spec.full_moments) {
    MakeProjection(spec, old_epoch, Basis(index), space.old_p, space.scratch);
  }
  RefreshBasis(spec, epoch, x, tokens, cold ? kColdIterations : kIterations, cold, Basis(index),
               space.scratch);
  if (!cold && !spec.full_moments) CarryMoments(index, old_epoch, epoch, space);
}

void AdamWOptimizer::CarryMoments(int index, int64_t old_epoch, int64_t epoch,
                                  const RefreshSpace& space) {
  if (projections_.moments == MomentRule::kKeep) return;
  const ProjectionSpec& spec = graph_.projections[index].spec;
  const bool reset = projections_.moments == MomentRule::kReset;
  if (!reset) MakeTransfer(spec, old_epoch, epoch, Basis(index), space);
  for (size_t p = 0; p < graph_.params.size(); ++p) {
    if (graph_.params[p].projection != index) continue;
    const MomentLayout::Slot& slot = moments_.slots[p];
    float* m = state_.m + slot.offset;
    float* v = state_.v + slot.offset;
    if (reset) {
      std::fill_n(m, slot.count, 0.0f);
      std::fill_n(v, slot.count, 0.0f);
    } else {
      ApplyTransfer(space, graph_.params[p].rows, spec.rank, m, v);
    }
  }
}

}  // namespace haversack
