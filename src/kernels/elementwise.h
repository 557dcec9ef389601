// Sums, copies and biases at memory speed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace haversack {

// out = a + b, [count]. out may be a or b.
void Add(const float* a, const float* b, int64_t count, float* out);
// dst += src, [count].
void AddInto(float* dst, const float* src, int64_t count);
// x *= factor, [count].
void Scale(float* x, int64_t count, float factor);
// x = value, [count].
void Fill(float* x, int64_t count, float value);

// dst[r] = src[r] for rows of `cols` floats that start src_stride and dst_stride floats apart.
void CopyRows(const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
              int64_t dst_stride);
// dst[r] += src[r], likewise.
void AddRows(const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
             int64_t dst_stride);

// y[r] += bias; y: [rows, cols] contiguous, bias: [cols].
void AddBias(float* y, int64_t rows, int64_t cols, const float* bias);

// Bytes of scratch for BiasBackward; 64-byte aligned by the caller.
size_t BiasBackwardScratch(int64_t rows, int64_t cols);

// dbias = sum over rows of dy, or added to it; dy's rows of `cols` floats start dy_stride floats
// apart. Bit-identical for any number of threads.
void BiasBackward(const float* dy, int64_t rows, int64_t cols, int64_t dy_stride, float* dbias,
                  bool accumulate_dbias, std::byte* scratch);

}  // namespace haversack
