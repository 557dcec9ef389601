#include "dist/sketch.h"

#include <algorithm>
#include <vector>

#include "base/threads.h"

namespace haversack {
namespace {

// Pieces with sums of their own, added in order.
constexpr int64_t kPieces = 16;

// A bijection that mixes well (the finaliser of SplitMix64, Steele et al., OOPSLA 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Sketch SketchOf(const float* x, int64_t count, uint64_t seed) {
  const uint64_t offset = Mix(seed + 0x9e3779b97f4a7c15u);
  std::vector<std::array<double, kSketchWidth>> pieces(kPieces);
  ParallelTasks(kPieces, [&](int64_t piece, int) {
    std::array<double, kSketchWidth>& cells = pieces[piece];
    cells.fill(0);
    const int64_t begin = count * piece / kPieces, end = count * (piece + 1) / kPieces;
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t bits = Mix(static_cast<uint64_t>(i) + offset);
      cells[bits % kSketchWidth] += bits >> 63 != 0 ? -x[i] : x[i];
    }
  });
  Sketch sketch;
  for (int64_t c = 0; c < kSketchWidth; ++c) {
    double sum = 0;
    for (const auto& cells : pieces) sum += cells[c];
    sketch[c] = static_cast<float>(sum);
  }
  return sketch;
}

}  // namespace haversack
