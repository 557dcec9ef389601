// CountSketch (Charikar, Chen and Farach-Colton, ICALP 2002) of a gradient: every element is added,
// with a random sign, to one of 4096 cells. Linear, and the inner product of two sketches of one
// seed is that of the vectors in the mean, with a standard deviation of |x||y| sqrt(1/4096) at most
// sqrt(2) times; so norms and differences of gradients can be compared at 16 KiB a rank.
#pragma once

#include <array>
#include <cstdint>

namespace haversack {

inline constexpr int64_t kSketchWidth = 4096;

using Sketch = std::array<float, kSketchWidth>;

// x: [count]. The same bits for any number of threads.
Sketch SketchOf(const float* x, int64_t count, uint64_t seed);

}  // namespace haversack
