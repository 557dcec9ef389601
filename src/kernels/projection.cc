#include "kernels/projection.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/adamw.h"
#include "kernels/gemm_rows.h"
#include "kernels/normal.h"
#include "kernels/orthonormal.h"

namespace haversack {
namespace {

constexpr int64_t kTileFloats = int64_t{1} << 18;  // 1 MiB
constexpr int64_t kTokenTile = 256;

constexpr auto kNo = Transpose::kNo;
constexpr auto kYes = Transpose::kYes;

// S - Q1 (Q1^T S), [cols, r2]; `shares` is [r1, r2].
void RandomDirections(const ProjectionSpec& spec, int64_t epoch, const float* q1, float* s,
                      float* shares) {
  const int64_t n = spec.cols, r1 = spec.principal, r2 = spec.random();
  FillNormal(spec.Key(epoch), 0, n * r2, 1, s);
  if (r1 == 0) return;
  GemmByRows(kYes, kNo, r1, r2, n, 1, q1, r1, s, r2, 0, shares, r2);
  GemmByRows(kNo, kNo, n, r2, r1, -1, q1, r1, shares, r2, 1, s, r2);
}

// next [cols, r1] = x^T (x q), some tokens at a time.
void CovarianceTimes(const ProjectionSpec& spec, const float* x, int64_t tokens, const float* q,
                     float* next, float* product) {
  const int64_t n = spec.cols, r1 = spec.principal;
  for (int64_t t = 0; t < tokens; t += kTokenTile) {
    const int64_t rows = std::min(kTokenTile, tokens - t);
    GemmByRows(kNo, kNo, rows, r1, n, 1, x + t * n, n, q, r1, 0, product, r1);
    GemmByRows(kYes, kNo, n, r1, rows, 1, x + t * n, n, product, r1, t == 0 ? 0 : 1, next, r1);
  }
}

void RefreshPrincipal(const ProjectionSpec& spec, int64_t epoch, const float* x, int64_t tokens,
                      int iterations, bool cold, float* q1, float* scratch) {
  const int64_t n = spec.cols, r1 = spec.principal;
  float* next = scratch;
  float* product = next + n * r1;
  float* orthonormalise = product + kTokenTile * r1;
  RandomKey key = spec.Key(epoch);
  key.layer += 0x40000000u;
  if (cold) {
    FillNormal(key, 0, n * r1, 1, q1);
    Orthonormalise(q1, n, r1, key, orthonormalise);
  }
  for (int i = 0; i < iterations; ++i) {
    CovarianceTimes(spec, x, tokens, q1, next, product);
    // A run that diverges is stopped by its loss; the basis must survive it.
    if (!std::isfinite(SquaredNorm(next, n * r1))) return;
    Orthonormalise(next, n, r1, key, orthonormalise);
    std::memcpy(q1, next, static_cast<size_t>(n * r1) * sizeof(float));
  }
}

int64_t Align16(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

double ProjectionSpec::random_scale() const {
  return std::sqrt(static_cast<double>(cols - principal) / static_cast<double>(random()));
}

RandomKey ProjectionSpec::Key(int64_t epoch) const {
  return {.seed = seed,
          .purpose = RandomPurpose::kProjection,
          .layer = index,
          .step = static_cast<uint64_t>(epoch)};
}

int64_t ProjectionSpec::tile_rows() const {
  if (stored()) return cols;
  return std::clamp<int64_t>(kTileFloats / rank / 16 * 16, 16, cols);
}

int64_t ProjectionSpec::tile_scratch() const {
  const int64_t tile = Align16(tile_rows() * rank);
  return stored() ? tile + Align16(cols * random()) + Align16(principal * random()) : tile;
}

int64_t ProjectionSpec::refresh_scratch() const {
  if (!stored()) return 0;
  const int64_t r1 = principal, r2 = random();
  const int64_t iteration = cols * r1 + kTokenTile * r1 + OrthonormaliseScratch(cols, r1);
  const int64_t factor = Align16(cols * r2) + Align16(r1 * r2) + cols * r2 + 3 * r2 * r2;
  return Align16(std::max(iteration, factor)) + 16;
}

void GaussianRows(const ProjectionSpec& spec, int64_t epoch, int64_t begin, int64_t rows,
                  float* p) {
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.rank)));
  FillNormal(spec.Key(epoch), static_cast<uint64_t>(begin * spec.rank), rows * spec.rank, scale, p);
}

void MakeProjection(const ProjectionSpec& spec, int64_t epoch, const float* basis, float* p,
                    float* scratch) {
  const int64_t n = spec.cols, r = spec.rank, r1 = spec.principal, r2 = spec.random();
  if (!spec.stored()) {
    GaussianRows(spec, epoch, 0, n, p);
    return;
  }
  for (int64_t row = 0; row < n; ++row) std::copy_n(basis + row * r1, r1, p + row * r);
  if (r2 == 0) return;
  float* s = scratch;
  RandomDirections(spec, epoch, basis, s, s + Align16(n * r2));
  GemmByRows(kNo, kNo, n, r2, r2, static_cast<float>(spec.random_scale()), s, r2, basis + n * r1,
             r2, 0, p + r1, r);
}

void ForEachTile(const ProjectionSpec& spec, int64_t epoch, const float* basis, float* scratch,
                 internal::FunctionRef<void(int64_t begin, int64_t rows, const float* p)> body) {
  if (spec.stored()) {
    MakeProjection(spec, epoch, basis, scratch, scratch + Align16(spec.cols * spec.rank));
    body(0, spec.cols, scratch);
    return;
  }
  for (int64_t begin = 0; begin < spec.cols; begin += spec.tile_rows()) {
    const int64_t rows = std::min(spec.tile_rows(), spec.cols - begin);
    GaussianRows(spec, epoch, begin, rows, scratch);
    body(begin, rows, scratch);
  }
}

void RefreshBasis(const ProjectionSpec& spec, int64_t epoch, const float* x, int64_t tokens,
                  int iterations, bool cold, float* basis, float* scratch) {
  if (!spec.stored()) return;
  const int64_t n = spec.cols, r1 = spec.principal, r2 = spec.random();
  if (r1 > 0) RefreshPrincipal(spec, epoch, x, tokens, iterations, cold, basis, scratch);
  if (r2 == 0) return;
  float* s = scratch;
  float* shares = s + Align16(n * r2);
  RandomDirections(spec, epoch, basis, s, shares);
  InverseCholeskyFactor(s, n, r2, basis + n * r1, shares + Align16(r1 * r2));
}

}  // namespace haversack
