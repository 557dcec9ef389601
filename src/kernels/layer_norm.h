// Layer normalisation over the last dimension (Ba, Kiros and Hinton, arXiv 1607.06450), with weight
// and bias.
//
// x, y, dx, dy: [rows, cols] contiguous; weight, bias and their gradients: [cols]; mean, rstd:
// [rows], rstd = 1 / sqrt(variance + epsilon) with the biased variance. Results are bit-identical
// for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace haversack {

// y = (x - mean) * rstd * weight + bias. y may be x.
void LayerNormForward(const float* x, const float* weight, const float* bias, float epsilon,
                      int64_t rows, int64_t cols, float* y, float* mean, float* rstd);

// y from x and the stored mean and rstd, bit-identical to the y of LayerNormForward. y may be x.
void LayerNormRebuild(const float* x, const float* weight, const float* bias, const float* mean,
                      const float* rstd, int64_t rows, int64_t cols, float* y);

// Bytes of scratch for LayerNormBackward; 64-byte aligned by the caller.
size_t LayerNormBackwardScratch(int64_t rows, int64_t cols);

// With h = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - h * mean(g * h)),
// dweight = sum over rows of dy * h, dbias = sum over rows of dy; dx, and dweight with dbias, are
// overwritten or added to. dx may be dy.
void LayerNormBackward(const float* dy, const float* x, const float* weight, const float* mean,
                       const float* rstd, int64_t rows, int64_t cols, float* dx, bool accumulate_dx,
                       float* dweight, float* dbias, bool accumulate_dweight, std::byte* scratch);

}  // namespace haversack
