#include "dist/batch_size.h"

#include <algorithm>
#include <cmath>

namespace haversack {

std::vector<int64_t> PlannedSizes(int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t power = 1; power <= most; power *= 2) {
    sizes.push_back(power);
    if (power >= 2 && power / 2 * 3 <= most) sizes.push_back(power / 2 * 3);
  }
  return sizes;
}

int64_t UsedBatch(double wanted, int64_t micro_batch) {
  const auto whole = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(wanted - 1e-9)));
  if (whole > 2 * micro_batch) return (whole + micro_batch - 1) / micro_batch * micro_batch;
  for (const int64_t size : PlannedSizes(micro_batch)) {
    if (size >= whole) return size;
  }
  return micro_batch;
}

}  // namespace haversack
