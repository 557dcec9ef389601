// AdamW (Loshchilov and Hutter, arXiv 1711.05101) over flat storage, as torch.optim.AdamW computes
// it, with the factor of gradient clipping folded in; and the squared norm that clipping needs.
#pragma once

#include <cstdint>

namespace haversack {

// Doubles, because 1 - beta2 formed from a float 0.999 would be wrong by 1e-5.
struct AdamWStep {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double bias_correction1 = 1;  // 1 - beta1^t, t counted from 1
  double bias_correction2 = 1;  // 1 - beta2^t
  double grad_scale = 1;        // each gradient is multiplied by it first (clipping)
};

// weight, grad, m, v: [count]. g = grad * grad_scale; weight *= 1 - lr * weight_decay;
// m += (1 - beta1) (g - m); v = beta2 v + (1 - beta2) g^2;
// weight -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + epsilon).
void AdamWUpdate(float* weight, const float* grad, float* m, float* v, int64_t count,
                 const AdamWStep& step);

// The same without the weights: direction[i] = m / (sqrt(v) / sqrt(bias_correction2) + epsilon)
// after m and v have moved; `direction` may be `grad`.
void AdamWDirection(const float* grad, float* m, float* v, int64_t count, const AdamWStep& step,
                    float* direction);

// Sum of squares in double, over blocks of a size that depends on `count` only, so bit-identical
// for any number of threads. It cannot overflow: the result is finite exactly when every element
// is.
double SquaredNorm(const float* x, int64_t count);

}  // namespace haversack
