// AdamW (Loshchilov and Hutter, arXiv 1711.05101) over a model's flat storage.
#pragma once

#include <cstdint>
#include <string>

#include "exec/model_state.h"
#include "graph/graph.h"
#include "kernels/adamw.h"
#include "kernels/low_rank_adamw.h"

namespace haversack {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // not on norms and biases
};

// What becomes of low-rank moments where their projection changes.
enum class MomentRule {
  kKeep,      // nothing: the basis changes under them
  kReset,     // they are zero again, and so is their bias correction's step
  kTransfer,  // they are carried over (kernels/low_rank_adamw.h)
};

// Throws UserError (exit 2) naming the known rules.
MomentRule ParseMomentRule(const std::string& text);
std::string ToText(MomentRule rule);

// Of weights whose gradients are projected.
struct ProjectionOptions {
  int64_t refresh = 50;  // optimizer steps between epochs
  double scale = 1;      // of the update: the effective rate is scale * lr
  MomentRule moments = MomentRule::kTransfer;

  // The epoch of an optimizer step that comes after `updates` others.
  int64_t EpochOf(int64_t updates) const { return updates / refresh; }
};

class AdamWOptimizer {
 public:
  // Moments live in `state`; the graph, the layouts and the memory behind `state` outlive this.
  AdamWOptimizer(const Graph& graph, const ParamLayout& layout, const MomentLayout& moments,
                 const ModelState& state, const AdamWOptions& options,
                 const ProjectionOptions& projections = {});

  // Sets what the updates of optimizer step `step` (counted from 1) use.
  void Begin(int64_t step, double lr, double grad_scale);
  // Updates parameter `param` from its gradient, which may be overwritten.
  void Update(ParamId param, float* grad);
  // Moves projection `index` and the moments in its space from epoch `old_epoch` (-1: there was
  // none) to `epoch`. `x` [tokens, cols]: the value that it projects.
  void RefreshProjection(int index, int64_t old_epoch, int64_t epoch, const float* x,
                         int64_t tokens);
  // Updates every parameter from the gradients in the state.
  void UpdateAll();

 private:
  void CarryMoments(int index, int64_t old_epoch, int64_t epoch, const RefreshSpace& space);
  void UpdateProjected(ParamId param, float* grad, AdamWStep step);
  float* Basis(int index) const { return state_.basis + layout_.basis_offset[index]; }

  const Graph& graph_;
  const ParamLayout& layout_;
  const MomentLayout& moments_;
  ModelState state_;
  AdamWOptions options_;
  ProjectionOptions projections_;
  AdamWStep current_;
  int64_t step_ = 0;
};

// Euclidean norm of all gradients, those in the space of a projection as they are (E[P P^T] = I:
// the expectation of their squares is that of the whole gradient's); not finite exactly when an
// element is not.
double GradientNorm(const ParamLayout& layout, const float* grads);

// The factor that brings a gradient of norm `norm` to at most `max_norm` (torch.nn.utils.
// clip_grad_norm_'s formula); 1 when `max_norm` is 0, which turns clipping off.
double ClipFactor(double norm, double max_norm);

}  // namespace haversack
