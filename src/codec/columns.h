// Which columns of a value are large in every row: a transformer's massive activations sit in a few
// fixed ones (Sun et al., arXiv 2402.17762).
#pragma once

#include <cstdint>
#include <vector>

namespace haversack {

// The largest |x| of each column; x: [rows, cols] with `stride` floats from row to row. NaN where
// the column holds one. No rows: zeros.
std::vector<float> ColumnMaxima(const float* x, int64_t stride, int64_t rows, int64_t cols);

// The `count` columns with the largest maxima, ascending; at equal maxima the lower column. NaN is
// the largest.
std::vector<int32_t> LargestColumns(const float* x, int64_t stride, int64_t rows, int64_t cols,
                                    int count);

}  // namespace haversack
