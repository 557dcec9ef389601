// The grouped codecs written plainly, one value at a time in double, for the tests to compare with:
// what a group's step and minimum are, and what a value decodes to.
#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "kernels/targets_test_util.h"

namespace haversack {

// The numbers with 8 significant bits next to v: at most v, at least v.
inline double Bf16Below(double v) {
  if (v == 0) return 0;
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(v) - 7, -133));
  return std::floor(v / ulp) * ulp;
}
inline double Bf16Above(double v) { return -Bf16Below(-v); }

// The nearer of them; at equal distance the one away from zero.
inline double Bf16Nearest(double v) {
  const double below = Bf16Below(std::abs(v)), above = Bf16Above(std::abs(v));
  return std::copysign(std::abs(v) - below < above - std::abs(v) ? below : above, v);
}

struct ReferenceGroup {
  double minimum = 0;  // int4 only
  double step = 0;
};

// Of the columns [begin, end) of a row, leaving out `excluded`. `codes`: 127 symmetric, 15 from a
// minimum.
inline ReferenceGroup MakeReferenceGroup(const float* row, int64_t begin, int64_t end,
                                         const std::set<int32_t>& excluded, int codes,
                                         bool stochastic = false) {
  double low = 0, high = 0;
  bool first = true;
  for (int64_t c = begin; c < end; ++c) {
    if (excluded.contains(static_cast<int32_t>(c))) continue;
    const double v = codes == 127 ? std::abs(row[c]) : row[c];
    low = first ? v : std::min(low, v);
    high = first ? v : std::max(high, v);
    first = false;
  }
  ReferenceGroup group;
  if (codes == 15) group.minimum = Bf16Below(low);
  // As f32 arithmetic has it; the double's own rounding would be finer.
  const float range = static_cast<float>(high - group.minimum);
  const float exact = std::max(range * (1 / static_cast<float>(codes)), 0x1p-110f);
  group.step = stochastic ? Bf16Above(exact) : Bf16Nearest(exact);
  return group;
}

// [rows, cols] as decode(encode(x)) with rounding to nearest should give it.
inline Floats ReferenceRoundTrip(const Floats& x, int64_t rows, int64_t cols, int64_t group,
                                 const std::vector<int32_t>& outliers, int codes) {
  const std::set<int32_t> excluded(outliers.begin(), outliers.end());
  Floats y(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x.data() + r * cols;
    for (int64_t begin = 0; begin < cols; begin += group) {
      const int64_t end = std::min(begin + group, cols);
      const ReferenceGroup g = MakeReferenceGroup(row, begin, end, excluded, codes);
      for (int64_t c = begin; c < end; ++c) {
        const float shifted = row[c] - static_cast<float>(g.minimum);
        const float inverse = 1.0f / static_cast<float>(g.step);
        const double code = std::nearbyint(shifted * inverse);  // ties to even, as the kernels'
        y[r * cols + c] = static_cast<float>(code * g.step + g.minimum);
      }
    }
    for (const int32_t c : excluded) {
      // The nearer neighbour; the even one at equal distance.
      const double below = Bf16Below(row[c]), above = Bf16Above(row[c]);
      const double to_below = row[c] - below, to_above = above - row[c];
      const double ulp = above - below;
      const bool even_below = ulp == 0 || std::fmod(std::abs(below) / ulp, 2) == 0;
      const bool take_below = to_below < to_above || (to_below == to_above && even_below);
      y[r * cols + c] = static_cast<float>(take_below ? below : above);
    }
  }
  return y;
}

}  // namespace haversack
