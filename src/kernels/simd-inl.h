// Loops over f32 spans with Highway, for the kernels' per-target code. Included once a target,
// inside a file that foreach_target.h re-includes.
//
//   ForLanes(count, [&](auto at) HAVERSACK_LANES { at.Store(Mul(at.Load(a), at.Load(b)), y); });
//   float sum = SumLanes(count, [&](auto at) HAVERSACK_LANES { return at.Load(x); });
//
// `at` stands for the position in the loop: at.Load(p) is the vector at p + position. The last,
// partial vector goes through the same code with lanes beyond the end read as zero and never
// written, so an element's result does not depend on where it lies.
#if defined(HAVERSACK_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAVERSACK_KERNELS_SIMD_INL_H_
#undef HAVERSACK_KERNELS_SIMD_INL_H_
#else
#define HAVERSACK_KERNELS_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

// On each lambda given to the loops below: the target's instruction set, and inlined so that
// vectors captured by reference stay in registers.
#ifndef HAVERSACK_LANES
#define HAVERSACK_LANES HWY_ATTR __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;

struct FullLanes {
  int64_t at;

  HWY_INLINE VecF32 Load(const float* p) const { return hn::LoadU(F32(), p + at); }
  HWY_INLINE void Store(VecF32 v, float* p) const { hn::StoreU(v, F32(), p + at); }
  // `v` with `other` in the lanes beyond the end.
  HWY_INLINE VecF32 Or(VecF32 v, VecF32 /*other*/) const { return v; }
  // Fetches the position into the cache. A kernel that makes two passes over a row leaves memory
  // idle in the second; it fetches the next row then. An address beyond the array does no harm.
  HWY_INLINE void Prefetch(const float* p) const { hwy::Prefetch(p + at); }
};

// Goes through memory on targets whose masked loads may fault beyond the end.
struct TailLanes {
  int64_t at;
  int64_t count;

#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_INLINE VecF32 Load(const float* p) const {
    HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(lanes, p + at, static_cast<size_t>(count) * sizeof(float));
    return hn::Load(F32(), lanes);
  }
  HWY_INLINE void Store(VecF32 v, float* p) const {
    HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(v, F32(), lanes);
    std::memcpy(p + at, lanes, static_cast<size_t>(count) * sizeof(float));
  }
#else
  HWY_INLINE VecF32 Load(const float* p) const {
    return hn::MaskedLoad(hn::FirstN(F32(), static_cast<size_t>(count)), F32(), p + at);
  }
  HWY_INLINE void Store(VecF32 v, float* p) const {
    hn::BlendedStore(v, hn::FirstN(F32(), static_cast<size_t>(count)), F32(), p + at);
  }
#endif
  HWY_INLINE VecF32 Or(VecF32 v, VecF32 other) const {
    return hn::IfThenElse(hn::FirstN(F32(), static_cast<size_t>(count)), v, other);
  }
  HWY_INLINE void Prefetch(const float* p) const { hwy::Prefetch(p + at); }
};

template <typename Body>
HWY_INLINE void ForLanes(int64_t count, const Body& body) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(FullLanes{i});
  if (i < count) body(TailLanes{i, count - i});
}

// The sum of term(at) over all lanes. Four partial sums a lane, in an order that depends on `count`
// only.
template <typename Term>
HWY_INLINE float SumLanes(int64_t count, const Term& term) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  VecF32 sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    sum0 = hn::Add(sum0, term(FullLanes{i}));
    sum1 = hn::Add(sum1, term(FullLanes{i + lanes}));
    sum2 = hn::Add(sum2, term(FullLanes{i + 2 * lanes}));
    sum3 = hn::Add(sum3, term(FullLanes{i + 3 * lanes}));
  }
  for (; i + lanes <= count; i += lanes) sum0 = hn::Add(sum0, term(FullLanes{i}));
  if (i < count) {
    const TailLanes tail{i, count - i};
    sum1 = hn::Add(sum1, tail.Or(term(tail), hn::Zero(d)));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#endif
