// Random and principal projections of activations: P [cols, rank] with E[P P^T] = I.
//
//   Gaussian (CompAct, arXiv 2410.15352): entries N(0, 1 / rank), drawn anew from the counter-based
//     generator wherever they are needed, some rows at a time; nothing is stored.
//   Orthonormal: P = sqrt(cols / rank) Q2, the same variance of P P^T's diagonal but less error:
//     E|P P^T x - x|^2 = (cols / rank - 1) |x|^2 in place of (cols + 1) / rank |x|^2.
//   Principal (PRAC, arXiv 2602.23111): P = [Q1, sqrt(k) Q2], k = (cols - r1) / r2. Q1: the leading
//     r1 right singular vectors of the activation; Q2: an orthonormal basis of r2 Gaussian
//     directions S projected off Q1. Q1 is stored, and of Q2 what makes it cheap to draw again: the
//     triangular T of Q2 = (S - Q1 (Q1^T S)) T.
//
// A projection changes with its epoch, a number that is part of the generator's key.
#pragma once

#include <cstdint>

#include "base/random.h"
#include "base/threads.h"

namespace haversack {

struct ProjectionSpec {
  int64_t cols = 0;          // n
  int64_t rank = 0;          // r, at most n
  int64_t principal = 0;     // r1; 0: all directions are random
  bool orthonormal = false;  // implied by principal > 0
  // Moments keep the weight's own shape; the gradient is expanded where it is used (PRAC as
  // published).
  bool full_moments = false;
  uint64_t seed = 0;
  uint32_t index = 0;  // which projection of the model

  int64_t random() const { return rank - principal; }  // r2
  bool stored() const { return orthonormal || principal > 0; }
  double random_scale() const;  // sqrt(k); of stored projections
  RandomKey Key(int64_t epoch) const;

  // Floats that are kept from epoch to epoch: Q1 [cols, r1], T [r2, r2].
  int64_t basis_floats() const { return stored() ? cols * principal + random() * random() : 0; }
  // Rows of P that ForEachTile makes at once.
  int64_t tile_rows() const;
  // Floats that ForEachTile works in.
  int64_t tile_scratch() const;
  // Floats that RefreshBasis works in.
  int64_t refresh_scratch() const;
  bool operator==(const ProjectionSpec&) const = default;
};

// body(begin, rows, p) for row tiles of P, in order: p is [rows, rank]. A stored projection comes
// in one tile.
void ForEachTile(const ProjectionSpec& spec, int64_t epoch, const float* basis, float* scratch,
                 internal::FunctionRef<void(int64_t begin, int64_t rows, const float* p)> body);

// Rows [begin, begin + rows) of a Gaussian P.
void GaussianRows(const ProjectionSpec& spec, int64_t epoch, int64_t begin, int64_t rows, float* p);

// All of P, [cols, rank]; scratch as for ForEachTile.
void MakeProjection(const ProjectionSpec& spec, int64_t epoch, const float* basis, float* p,
                    float* scratch);

// Moves a stored projection to `epoch`: Q1 takes `iterations` subspace iterations on x [tokens,
// cols], uncentred, from where it is (`cold`: from random directions); T follows. Q1 stays where x
// is not finite.
void RefreshBasis(const ProjectionSpec& spec, int64_t epoch, const float* x, int64_t tokens,
                  int iterations, bool cold, float* basis, float* scratch);

}  // namespace haversack
