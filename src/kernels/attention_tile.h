// Element-wise steps of attention on one tile of scores, in base 2: scores arrive multiplied by
// scale * log2(e), so that exp becomes exp2 and needs no argument reduction by ln 2.
#pragma once

#include <cstdint>

namespace haversack::attention {

// Scores of `heads` x `tokens` query rows (row = head * tokens + token) against `width` keys. Row
// (h, t) sees its first min(width, visible + t) keys, visible >= 1; those beyond are the future.
// Rows are 64-byte aligned and `stride` is a multiple of 16 floats, at least `width` rounded up to
// that.
struct ScoreTile {
  float* scores = nullptr;
  int64_t stride = 0;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t width = 0;
  int64_t visible = 0;
};

// One step of the online softmax (Milakov and Gimelshein 2018): scores become exp2(score -
// maximum), 0 for keys of the future; row_max and row_sum [rows] are updated, and where a maximum
// rose the row of `out` [rows, head_dim] is scaled down to it. `first` starts the rows: nothing is
// read from any of the three.
void OnlineSoftmax(const ScoreTile& tile, bool first, int64_t head_dim, float* row_max,
                   float* row_sum, float* out);

// Turns scores into P = exp2(score - row_lse2), and d_scores (dP on entry, laid out as the scores)
// into P * (dP - row_delta); both 0 for keys of the future.
void SoftmaxGradient(const ScoreTile& tile, const float* row_lse2, const float* row_delta,
                     float* d_scores);

// The two below pair stacked rows [tokens * heads, head_dim] with [tokens, heads * head_dim] whose
// tokens are `stride` floats apart.

// to = rows / row_sum.
void NormalizeRows(int64_t tokens, int64_t heads, int64_t head_dim, const float* row_sum,
                   const float* rows, float* to, int64_t stride);

// dots[row] = sum of rows * other over head_dim.
void RowDots(int64_t tokens, int64_t heads, int64_t head_dim, const float* rows, const float* other,
             int64_t stride, float* dots);

}  // namespace haversack::attention
