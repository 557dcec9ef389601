#include "kernels/low_rank_adamw.h"

#include <algorithm>
#include <vector>

#include "kernels/gemm_rows.h"

namespace haversack {
namespace {

constexpr int64_t kRowTile = 64;

// AdamW on the piece [rows, tile rows] of W that a tile of P covers.
void ExpandedUpdate(const LowRankWeight& w, const ProjectionSpec& spec, int64_t begin, int64_t cols,
                    const float* p, const AdamWStep& step, float* gradient) {
  const int64_t n = spec.cols, r = spec.rank;
  for (int64_t row = 0; row < w.rows; row += kRowTile) {
    const int64_t rows = std::min(kRowTile, w.rows - row);
    GemmByRows(Transpose::kNo, Transpose::kYes, rows, cols, r, 1, w.grad + row * r, r, p, r, 0,
               gradient, cols);
    const int64_t offset = row * n + begin;
    if (cols == n) {
      AdamWUpdate(w.weight + offset, gradient, w.m + offset, w.v + offset, rows * n, step);
      continue;
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = offset + i * n;
      AdamWUpdate(w.weight + at, gradient + i * cols, w.m + at, w.v + at, cols, step);
    }
  }
}

int64_t Align16(int64_t floats) { return (floats + 15) / 16 * 16; }

// d_j^2 of P = Q D.
double SquaredScale(const ProjectionSpec& spec, int64_t j) {
  return j < spec.principal ? 1 : spec.random_scale() * spec.random_scale();
}

void MakePrincipalTransfer(const ProjectionSpec& spec, const RefreshSpace& t) {
  const int64_t r = spec.rank;
  std::vector<double> scale(r);
  for (int64_t j = 0; j < r; ++j) scale[j] = SquaredScale(spec, j);
  for (int64_t i = 0; i < r; ++i) {
    double covered = 0;
    for (int64_t j = 0; j < r; ++j) {
      // So far d_i c d_j, with the cosine c of the two directions.
      const double product = t.first[i * r + j];
      covered += product * product / (scale[i] * scale[j]);
      t.first[i * r + j] = static_cast<float>(product / scale[j]);
    }
    const double rest = std::max(0.0, 1 - covered) * scale[i] / static_cast<double>(r);
    for (int64_t j = 0; j < r; ++j) {
      const double c = t.first[i * r + j];
      t.second[i * r + j] = static_cast<float>(c * c + rest / scale[j]);
    }
  }
}

void ApplyRows(const float* c, int64_t rows, int64_t rank, float* moments, float* scratch) {
  for (int64_t row = 0; row < rows; row += kRowTile) {
    const int64_t count = std::min(kRowTile, rows - row);
    float* x = moments + row * rank;
    GemmByRows(Transpose::kNo, Transpose::kYes, count, rank, rank, 1, x, rank, c, rank, 0, scratch,
               rank);
    std::copy_n(scratch, count * rank, x);
  }
}

}  // namespace

int64_t LowRankScratch(const ProjectionSpec& spec) {
  return spec.tile_scratch() + (spec.full_moments ? kRowTile * spec.tile_rows() : 0);
}

void LowRankAdamWUpdate(const LowRankWeight& w, const PresentProjection& p, double alpha,
                        const AdamWStep& step) {
  const int64_t n = p.spec.cols, r = p.spec.rank;
  if (p.spec.full_moments) {
    float* gradient = p.scratch + p.spec.tile_scratch();
    ForEachTile(p.spec, p.epoch, p.basis, p.scratch,
                [&](int64_t begin, int64_t rows, const float* tile) {
                  ExpandedUpdate(w, p.spec, begin, rows, tile, step, gradient);
                });
    return;
  }
  float* direction = w.grad;
  AdamWDirection(w.grad, w.m, w.v, w.rows * r, step, direction);
  const auto size = static_cast<float>(step.lr * alpha / step.bias_correction1);
  const auto decay = static_cast<float>(1 - step.lr * step.weight_decay);
  ForEachTile(p.spec, p.epoch, p.basis, p.scratch,
              [&](int64_t begin, int64_t rows, const float* tile) {
                GemmByRows(Transpose::kNo, Transpose::kYes, w.rows, rows, r, -size, direction, r,
                           tile, r, decay, w.weight + begin, n);
              });
}

int64_t RefreshSpace::Floats(const ProjectionSpec& spec) {
  return At(spec, nullptr).rows - static_cast<float*>(nullptr) + Align16(kRowTile * spec.rank);
}

RefreshSpace RefreshSpace::At(const ProjectionSpec& spec, float* base) {
  RefreshSpace space;
  const auto take = [&](int64_t floats) {
    float* at = base;
    base += Align16(floats);
    return at;
  };
  space.scratch = take(std::max(spec.tile_scratch(), spec.refresh_scratch()));
  space.old_p = take(spec.stored() ? spec.cols * spec.rank : 0);
  space.next_p = take(spec.tile_rows() * spec.rank);
  space.first = take(spec.rank * spec.rank);
  space.second = take(spec.rank * spec.rank);
  space.rows = take(kRowTile * spec.rank);
  return space;
}

void MakeTransfer(const ProjectionSpec& spec, int64_t old_epoch, int64_t epoch, const float* basis,
                  const RefreshSpace& space) {
  const int64_t n = spec.cols, r = spec.rank;
  const auto cols = static_cast<double>(n), rank = static_cast<double>(r);
  if (!spec.stored()) {
    const auto shrink = static_cast<float>(1 / (1 + (cols + 1) / rank));
    ForEachTile(spec, old_epoch, basis, space.scratch,
                [&](int64_t begin, int64_t rows, const float* old_rows) {
                  GaussianRows(spec, epoch, begin, rows, space.next_p);
                  GemmByRows(Transpose::kYes, Transpose::kNo, r, r, rows, shrink, space.next_p, r,
                             old_rows, r, begin == 0 ? 0 : 1, space.first, r);
                });
  } else {
    const double shrink = spec.principal > 0 ? 1 : rank / cols;
    MakeProjection(spec, epoch, basis, space.next_p, space.scratch);
    GemmByRows(Transpose::kYes, Transpose::kNo, r, r, n, static_cast<float>(shrink), space.next_p,
               r, space.old_p, r, 0, space.first, r);
  }
  if (spec.principal > 0) return MakePrincipalTransfer(spec, space);
  std::fill_n(space.second, r * r, 1 / static_cast<float>(r));
}

void ApplyTransfer(const RefreshSpace& space, int64_t rows, int64_t rank, float* m, float* v) {
  ApplyRows(space.first, rows, rank, m, space.rows);
  ApplyRows(space.second, rows, rank, v, space.rows);
}

}  // namespace haversack
