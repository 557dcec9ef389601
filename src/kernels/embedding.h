// Rows of a table picked by id, and the gradient of the table.
//
// table, dtable: [vocab, cols]; ids: [rows], in [0, vocab) (checked); y, dy: [rows, cols].
#pragma once

#include <cstdint>

namespace haversack {

// y[r] = table[ids[r]].
void EmbeddingForward(const float* table, int64_t vocab, int64_t cols, const int32_t* ids,
                      int64_t rows, float* y);

// y[r] = table[ids[r]] + position_table[positions[r]] (GPT-2). position_table: [max_positions,
// cols]; positions: [rows], in [0, max_positions) (checked).
void EmbeddingForward(const float* table, int64_t vocab, int64_t cols, const int32_t* ids,
                      const float* position_table, int64_t max_positions, const int32_t* positions,
                      int64_t rows, float* y);

// dtable[ids[r]] += dy[r], rows of equal id in the order of r for any number of threads. The
// gradient of a position table likewise, with positions for ids.
void EmbeddingBackward(const float* dy, const int32_t* ids, int64_t rows, int64_t cols,
                       float* dtable, int64_t vocab);

}  // namespace haversack
