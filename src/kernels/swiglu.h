// SwiGLU (Shazeer, arXiv 2002.05202): y = silu(gate) * up with silu(z) = z * sigmoid(z).
//
// gate_up, d_gate_up: [rows, 2 * cols] contiguous, each row the gate, then up; y, dy: [rows, cols].
#pragma once

#include <cstdint>

namespace haversack {

void SwigluForward(const float* gate_up, int64_t rows, int64_t cols, float* y);

// d_gate = dy * up * s * (1 + gate * (1 - s)) with s = sigmoid(gate); d_up = dy * silu(gate).
// d_gate_up may be gate_up.
void SwigluBackward(const float* dy, const float* gate_up, int64_t rows, int64_t cols,
                    float* d_gate_up);

}  // namespace haversack
