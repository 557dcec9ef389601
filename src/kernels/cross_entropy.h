// Softmax cross-entropy of a chunk of logits, and its gradient in place.
//
// logits: row r starts at logits + r * stride (in floats) and holds `vocab` of them; targets:
// [rows], below vocab, negative = ignored; losses: [rows], -log softmax(logits)[target], 0 where
// ignored. A NaN or +inf logit, or a row of -inf only, gives a NaN loss and gradient; a single -inf
// logit has probability 0. The logits of an ignored row are not read.
#pragma once

#include <cstdint>

namespace haversack {

// Replaces each row by (softmax - onehot(target)) * scale, or by zeros where the target is
// negative.
void CrossEntropyForwardBackward(float* logits, int64_t stride, int64_t rows, int64_t vocab,
                                 const int32_t* targets, float scale, float* losses);

// Losses only, bit-identical to those of CrossEntropyForwardBackward.
void CrossEntropyForward(const float* logits, int64_t stride, int64_t rows, int64_t vocab,
                         const int32_t* targets, float* losses);

}  // namespace haversack
