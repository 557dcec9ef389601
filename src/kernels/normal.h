// Standard normal numbers in bulk, from the counter-based generator of base/random.h.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace haversack {

// out[i] = scale * RandomStream(key).Normal(first + i) for i in [0, count), to some units in the
// last place (near zero to 3e-4: a uniform word next to 1 has no closer f32). An element's bits
// depend on its key and number only, not on `first`, `count` or the threads.
void FillNormal(const RandomKey& key, uint64_t first, int64_t count, float scale, float* out);

}  // namespace haversack
