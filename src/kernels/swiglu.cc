#include "kernels/swiglu.h"

#include "base/threads.h"
#include "kernels/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu.cc"
#include "hwy/foreach_target.h"
#include "kernels/math-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

void SwigluForwardRows(const float* gate_up, int64_t rows, int64_t cols, float* y) {
  for (int64_t r = 0; r < rows; ++r, gate_up += 2 * cols, y += cols) {
    const float* up = gate_up + cols;
    ForLanes(cols, [&](auto at) HAVERSACK_LANES {
      const VecF32 gate = at.Load(gate_up);
      at.Store(hn::Mul(hn::Mul(gate, Sigmoid(gate)), at.Load(up)), y);
    });
  }
}

void SwigluBackwardRows(const float* dy, const float* gate_up, int64_t rows, int64_t cols,
                        float* d_gate_up) {
  const VecF32 one = hn::Set(F32(), 1.0f);
  for (int64_t r = 0; r < rows; ++r, dy += cols, gate_up += 2 * cols, d_gate_up += 2 * cols) {
    const float* up = gate_up + cols;
    float* d_up = d_gate_up + cols;
    ForLanes(cols, [&](auto at) HAVERSACK_LANES {
      const VecF32 g = at.Load(dy);
      const VecF32 gate = at.Load(gate_up);
      const VecF32 s = Sigmoid(gate);
      const VecF32 slope = hn::Mul(s, hn::MulAdd(gate, hn::Sub(one, s), one));
      const VecF32 d_gate = hn::Mul(hn::Mul(g, at.Load(up)), slope);
      at.Store(hn::Mul(g, hn::Mul(gate, s)), d_up);
      at.Store(d_gate, d_gate_up);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(SwigluForwardRows);
HWY_EXPORT(SwigluBackwardRows);

void SwigluForward(const float* gate_up, int64_t rows, int64_t cols, float* y) {
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwigluForwardRows)
    (gate_up + begin * 2 * cols, end - begin, cols, y + begin * cols);
  });
}

void SwigluBackward(const float* dy, const float* gate_up, int64_t rows, int64_t cols,
                    float* d_gate_up) {
  ParallelFor(rows, RowGrain(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwigluBackwardRows)
    (dy + begin * cols, gate_up + begin * 2 * cols, end - begin, cols,
     d_gate_up + begin * 2 * cols);
  });
}

}  // namespace haversack
#endif
