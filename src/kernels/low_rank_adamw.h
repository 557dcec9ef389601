// AdamW of a linear layer's weight W [rows, cols] (y = x W^T) whose gradient is only known as
// G^ = dY^T (x P) = G P [rows, rank].
#pragma once

#include <cstdint>

#include "kernels/adamw.h"
#include "kernels/projection.h"

namespace haversack {

// One weight, its gradient and its moments. `grad` [rows, rank] is overwritten; the moments are
// [rows, rank], or [rows, cols] where the projection has full_moments.
struct LowRankWeight {
  float* weight = nullptr;
  float* grad = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  int64_t rows = 0;
};

// P at the present epoch; `scratch`: LowRankScratch floats.
struct PresentProjection {
  const ProjectionSpec& spec;
  int64_t epoch = 0;
  const float* basis = nullptr;
  float* scratch = nullptr;
};

// Floats that the functions here work in.
int64_t LowRankScratch(const ProjectionSpec& spec);

// N = AdamW's direction in the space of G^; W <- W - lr (alpha / bias_correction1 N P^T +
// weight_decay W), one tile of P after the other, without a temporary of W's size. Entries of N P^T
// have the RMS of N's, so alpha lr is the effective rate. With full_moments: AdamW on G^ P^T, which
// is formed by tiles likewise, at the rate lr.
void LowRankAdamWUpdate(const LowRankWeight& w, const PresentProjection& p, double alpha,
                        const AdamWStep& step);

// What a change of P works in: one allocation, laid out by RefreshSpace::Floats and At.
struct RefreshSpace {
  float* scratch = nullptr;  // for RefreshBasis and the making of P
  float* old_p = nullptr;    // [cols, rank], of stored projections
  float* next_p = nullptr;   // [cols, rank], or one tile
  // How moments follow to the next P: c [rank, rank] takes a vector m of moments to c m.
  float* first = nullptr;
  float* second = nullptr;
  float* rows = nullptr;  // 64 rows of moments

  static int64_t Floats(const ProjectionSpec& spec);
  static RefreshSpace At(const ProjectionSpec& spec, float* base);
};

// Fills `space.first` and `space.second` for the way from `old_epoch` (of a stored projection P is
// given in `space.old_p`) to `epoch`.
//   Random: first = P_new^T P_old / (1 + (cols + 1) / rank), by which |M|^2 is expected to grow
//     (orthonormal: cols / rank); second: the mean of each row.
//   Principal, P = Q D: first = D_new Q_new^T Q_old D_old^-1; second: its squares, and the mean of
//     V D_old^-2 for the share of each new direction that no old one covers (own).
void MakeTransfer(const ProjectionSpec& spec, int64_t old_epoch, int64_t epoch, const float* basis,
                  const RefreshSpace& space);

// Takes moments m, v [rows, rank] along, in place.
void ApplyTransfer(const RefreshSpace& space, int64_t rows, int64_t rank, float* m, float* v);

}  // namespace haversack
