// Parallel loops over flat arrays.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/threads.h"

namespace haversack {

// body(begin, end) over [0, count) on several threads. Pieces begin at multiples of 1024 elements,
// so only the last one has a partial vector and no cache line is shared, for any number of threads.
template <typename Body>
void ParallelFlat(int64_t count, const Body& body) {
  constexpr int64_t kUnit = 1024;
  ParallelFor((count + kUnit - 1) / kUnit, /*grain=*/16, [&](int64_t begin, int64_t end) {
    body(begin * kUnit, std::min(end * kUnit, count));
  });
}

}  // namespace haversack
