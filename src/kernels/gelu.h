// Gaussian error linear units (Hendrycks and Gimpel, arXiv 1606.08415), element by element.
#pragma once

#include <cstdint>

namespace haversack {

// The tanh approximation ("gelu_new", "gelu_pytorch_tanh"): y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x
// + 0.044715 x^3))). y may be x.
void GeluTanhForward(const float* x, int64_t count, float* y);
// dx = dy * y'(x). dx may be x or dy.
void GeluTanhBackward(const float* dy, const float* x, int64_t count, float* dx);

// The exact form ("gelu"): y = x * Phi(x), Phi the normal distribution function. y may be x.
void GeluErfForward(const float* x, int64_t count, float* y);
// dx = dy * (Phi(x) + x * phi(x)). dx may be x or dy.
void GeluErfBackward(const float* dy, const float* x, int64_t count, float* dx);

}  // namespace haversack
