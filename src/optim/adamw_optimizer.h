// AdamW (Loshchilov and Hutter, arXiv 1711.05101) over a model's flat storage.
#pragma once

#include <cstdint>

#include "exec/model_state.h"
#include "graph/graph.h"
#include "kernels/adamw.h"

namespace haversack {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // not on norms and biases
};

class AdamWOptimizer {
 public:
  // Moments live in `state`; the graph, the layouts and the memory behind `state` outlive this.
  AdamWOptimizer(const Graph& graph, const ParamLayout& layout, const MomentLayout& moments,
                 const ModelState& state, const AdamWOptions& options);

  // Sets what the updates of optimizer step `step` (counted from 1) use.
  void Begin(int64_t step, double lr, double grad_scale);
  // Updates parameter `param` from its gradient.
  void Update(ParamId param, const float* grad);
  // Updates every parameter from the gradients in the state.
  void UpdateAll();

 private:
  const Graph& graph_;
  const ParamLayout& layout_;
  const MomentLayout& moments_;
  ModelState state_;
  AdamWOptions options_;
  AdamWStep current_;
};

// Euclidean norm of all gradients; not finite exactly when an element is not.
double GradientNorm(const ParamLayout& layout, const float* grads);

// The factor that brings a gradient of norm `norm` to at most `max_norm` (torch.nn.utils.
// clip_grad_norm_'s formula); 1 when `max_norm` is 0, which turns clipping off.
double ClipFactor(double norm, double max_norm);

}  // namespace haversack
