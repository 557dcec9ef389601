#include "kernels/attention_blocks.h"

#include <cstring>

#include "base/error.h"

namespace haversack::attention {

// Some 128 to 256 stacked rows amortise the reading of keys and keep MKL near its peak; fewer
// tokens a block waste less on the diagonal.
int64_t QueryTokens(const AttentionShape& shape) {
  int64_t tokens = Group(shape) == 1 ? 128 : 64;
  while (tokens > 1 && tokens * Group(shape) > 256) tokens /= 2;
  return tokens;
}

void CheckArguments(const AttentionShape& shape, const std::byte* scratch) {
  HAVERSACK_CHECK(shape.kv_heads >= 1 && shape.head_dim >= 1 && shape.q_heads >= shape.kv_heads &&
                      shape.q_heads % shape.kv_heads == 0,
                  "[attention] {} query heads, {} key heads of {}", shape.q_heads, shape.kv_heads,
                  shape.head_dim);
  HAVERSACK_CHECK(reinterpret_cast<uintptr_t>(scratch) % kLine == 0,
                  "[attention] scratch is not 64-byte aligned");
}

int64_t LongestSegment(std::span<const int32_t> boundaries) {
  HAVERSACK_CHECK(!boundaries.empty() && boundaries.front() == 0,
                  "[attention] boundaries begin with 0");
  int64_t longest = 0;
  for (size_t i = 1; i < boundaries.size(); ++i) {
    const int64_t length = int64_t{boundaries[i]} - boundaries[i - 1];
    HAVERSACK_CHECK(length >= 0, "[attention] boundary {} is {} after {}", i, boundaries[i],
                    boundaries[i - 1]);
    longest = std::max(longest, length);
  }
  return longest;
}

void CopyRows(const AttentionShape& shape, const QueryBlock& block, const float* from,
              int64_t from_stride, float* to, int64_t to_stride) {
  const size_t bytes = Group(shape) * shape.head_dim * sizeof(float);
  for (int64_t t = 0; t < block.tokens; ++t) {
    std::memcpy(to + t * to_stride, from + t * from_stride, bytes);
  }
}

}  // namespace haversack::attention
