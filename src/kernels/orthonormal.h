// Orthonormal bases of tall matrices.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace haversack {

// Floats of scratch for Orthonormalise.
int64_t OrthonormaliseScratch(int64_t rows, int64_t cols);

// Makes the columns of a [rows, cols], row-major, orthonormal to f32 rounding: block Gram-Schmidt,
// every panel projected and orthonormalised twice (Barlow and Smoktunowicz, "Reorthogonalized block
// classical Gram-Schmidt", 2013). The span of the first k columns stays what it was for every k,
// but a column that depends on those before it is replaced by a random direction drawn from `key`.
// rows >= cols; `a` is finite.
void Orthonormalise(float* a, int64_t rows, int64_t cols, const RandomKey& key, float* scratch);

// The upper triangular t [cols, cols], zeros below, with a t orthonormal, where a has full column
// rank and a condition number far below 1e3 (Cholesky QR, twice). `scratch`: rows * cols + 3 * cols
// * cols floats, 64-byte aligned.
void InverseCholeskyFactor(const float* a, int64_t rows, int64_t cols, float* t, float* scratch);

}  // namespace haversack
