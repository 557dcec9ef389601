// Element-wise backwards that read encoded values tile by tile: the decoded tensor never exists,
// nor does a second pass over memory. Results are those of Decode followed by the plain kernel, bit
// for bit.
//
//   const EncodedColumns gate{{codec, rows, ffn, {}}, gate_bytes, 0};
//   const EncodedColumns up{{codec, rows, ffn, {}}, up_bytes, ffn};
//   SwigluBackwardEncoded(dy, {{gate, up}}, rows, ffn, d_gate_up);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.h"

namespace haversack {

// An encoded value and the column of a packed row where its columns begin.
struct EncodedColumns {
  EncodedShape shape;
  const std::byte* data = nullptr;
  int64_t first = 0;
};

// SwigluForward (kernels/swiglu.h) from encoded columns that together make up gate_up. Scratch:
// SwigluForwardEncodedScratch bytes, a few decoded rows a thread.
void SwigluForwardEncoded(std::span<const EncodedColumns> gate_up, int64_t rows, int64_t cols,
                          float* y, std::byte* scratch);
size_t SwigluForwardEncodedScratch(int64_t cols);

// SwigluBackward (kernels/swiglu.h) from encoded columns that together make up gate_up. The rows
// are decoded where their gradient goes, so it needs no scratch.
void SwigluBackwardEncoded(const float* dy, std::span<const EncodedColumns> gate_up, int64_t rows,
                           int64_t cols, float* d_gate_up);

// RmsNormRebuild (kernels/rms_norm.h) from an encoded x; rows and columns are those of x.shape.
void RmsNormRebuildEncoded(const EncodedColumns& x, const float* weight, const float* rstd,
                           float* y);

// RmsNormBackward (kernels/rms_norm.h) from an encoded x. Scratch: RmsNormBackwardFromRowsScratch.
void RmsNormBackwardEncoded(const float* dy, const EncodedColumns& x, const float* weight,
                            const float* rstd, float* dx, bool accumulate_dx, float* dweight,
                            bool accumulate_dweight, std::byte* scratch);

}  // namespace haversack
