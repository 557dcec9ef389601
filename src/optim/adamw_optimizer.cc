#include "optim/adamw_optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/adamw_8bit.h"

namespace haversack {

AdamWOptimizer::AdamWOptimizer(const Graph& graph, const ParamLayout& layout,
                               const MomentLayout& moments, const ModelState& state,
                               const AdamWOptions& options, const ProjectionOptions& projections)
    : graph_(graph),
      layout_(layout),
      moments_(moments),
      state_(state),
      options_(options),
      projections_(projections) {}

namespace {

double BiasCorrection(double beta, int64_t step) {
  return 1 - std::pow(beta, static_cast<double>(step));
}

}  // namespace

void AdamWOptimizer::Begin(int64_t step, double lr, double grad_scale) {
  step_ = step;
  current_ = {.lr = lr,
              .beta1 = options_.beta1,
              .beta2 = options_.beta2,
              .epsilon = options_.epsilon,
              .weight_decay = 0,
              .bias_correction1 = BiasCorrection(options_.beta1, step),
              .bias_correction2 = BiasCorrection(options_.beta2, step),
              .grad_scale = grad_scale};
}

void AdamWOptimizer::Update(ParamId param, float* grad) {
  const MomentLayout::Slot& slot = moments_.slots[param];
  float* weight = state_.weights + layout_.offset[param];
  AdamWStep step = current_;
  if (graph_.params[param].decay) step.weight_decay = options_.weight_decay;
  if (graph_.params[param].projection >= 0) return UpdateProjected(param, grad, step);
  if (slot.type == MomentType::kInt8) {
    AdamWUpdate8Bit(weight, grad,
                    {.m = reinterpret_cast<uint8_t*>(state_.m + slot.offset),
                     .v = reinterpret_cast<uint8_t*>(state_.v + slot.offset),
                     .m_scale = state_.m + slot.scales,
                     .v_scale = state_.v + slot.scales},
                    slot.count, step);
    return;
  }
  AdamWUpdate(weight, grad, state_.m + slot.offset, state_.v + slot.offset, slot.count, step);
}

void AdamWOptimizer::UpdateAll() {
  for (ParamId p = 0; p < static_cast<ParamId>(graph_.params.size()); ++p) {
    Update(p, state_.grads + layout_.grad_offset[p]);
  }
}

double GradientNorm(const ParamLayout& layout, const float* grads) {
  return std::sqrt(SquaredNorm(grads, layout.grad_total));
}

double ClipFactor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace haversack
