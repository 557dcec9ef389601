#include "kernels/adamw_8bit.h"

#include <algorithm>
#include <cstring>

#include "base/threads.h"
#include "kernels/dynamic_code.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw_8bit.cc"
#include "hwy/foreach_target.h"
#include "kernels/adamw-inl.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

using I32 = hn::RebindToSigned<F32>;
using U8 = hn::Rebind<uint8_t, F32>;
using VecI32 = hn::Vec<I32>;

HWY_INLINE VecF32 Decode(const uint8_t* bytes, const DynamicCode& code, VecF32 scale) {
  const VecI32 index = hn::PromoteTo(I32(), hn::LoadU(U8(), bytes));
  return hn::Mul(hn::GatherIndex(F32(), code.value.data(), index), scale);
}

// The index of the magnitude nearest to x in [0, 1]: a linear guess within x's decade, which is off
// by at most one at a decade's ends, and a comparison with the thresholds on either side.
HWY_INLINE VecI32 Nearest(VecF32 x, const DynamicCode& code) {
  const F32 d;
  const I32 di;
  VecF32 slope = hn::Set(d, code.slope[0]), offset = hn::Set(d, code.offset[0]);
  constexpr float kDecade[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f};
  for (int i = 0; i < 6; ++i) {
    const auto above = hn::Ge(x, hn::Set(d, kDecade[i]));
    slope = hn::IfThenElse(above, hn::Set(d, code.slope[i + 1]), slope);
    offset = hn::IfThenElse(above, hn::Set(d, code.offset[i + 1]), offset);
  }
  const VecI32 guess = hn::Max(hn::ConvertTo(di, hn::MulAdd(x, slope, offset)), hn::Set(di, 1));
  const VecI32 last = hn::Set(di, code.count - 1);
  const VecI32 index = hn::Min(guess, last);
  const VecF32 low = hn::GatherIndex(d, code.threshold.data(), index);
  const VecF32 high = hn::GatherIndex(d, code.threshold.data(), hn::Add(index, hn::Set(di, 1)));
  const VecI32 one = hn::Set(di, 1);
  const VecI32 down = hn::IfThenElseZero(hn::RebindMask(di, hn::Lt(x, low)), one);
  const VecI32 up = hn::IfThenElseZero(hn::RebindMask(di, hn::Ge(x, high)), one);
  return hn::Add(hn::Sub(index, down), up);
}

HWY_INLINE void StoreBytes(VecI32 index, uint8_t* out) {
  hn::StoreU(hn::DemoteTo(U8(), index), U8(), out);
}

float MaxAbs(const float* x) {
  VecF32 max = hn::Zero(F32());
  ForLanes(kMomentBlock, [&](auto at) HAVERSACK_LANES { max = hn::Max(max, hn::Abs(at.Load(x))); });
  return hn::GetLane(hn::MaxOfLanes(F32(), max));
}

// `bytes` of a block whose largest magnitude is `scale`.
void EncodeSigned(const float* x, float scale, uint8_t* bytes) {
  const DynamicCode& code = SignedDynamicCode();
  const I32 di;
  const VecF32 divisor = hn::Set(F32(), scale > 0 ? scale : 1);
  const VecI32 zero = hn::Set(di, 127);
  ForLanes(kMomentBlock, [&](auto at) HAVERSACK_LANES {
    const VecF32 value = hn::Div(at.Load(x), divisor);
    const VecI32 index = Nearest(hn::Abs(value), code);
    const auto negative = hn::RebindMask(di, hn::Lt(value, hn::Zero(F32())));
    const VecI32 below = hn::Max(hn::Sub(zero, index), hn::Zero(di));
    StoreBytes(hn::IfThenElse(negative, below, hn::Add(zero, index)), bytes + at.at);
  });
}

void EncodeUnsigned(const float* x, float scale, uint8_t* bytes) {
  const DynamicCode& code = UnsignedDynamicCode();
  const I32 di;
  const VecF32 divisor = hn::Set(F32(), scale > 0 ? scale : 1);
  ForLanes(kMomentBlock, [&](auto at) HAVERSACK_LANES {
    const VecF32 value = at.Load(x);
    const VecI32 index = Nearest(hn::Div(value, divisor), code);
    const auto some = hn::RebindMask(di, hn::Gt(value, hn::Zero(F32())));
    StoreBytes(hn::Max(index, hn::IfThenElseZero(some, hn::Set(di, 1))), bytes + at.at);
  });
}

// One block of `count` <= kMomentBlock elements; beyond them all is zero.
void AdamWBlock(float* weight, const float* grad, uint8_t* m_bytes, uint8_t* v_bytes,
                float* m_scale, float* v_scale, int64_t count, const AdamWStep& step) {
  HWY_ALIGN float m[kMomentBlock] = {}, v[kMomentBlock] = {};
  // Room for a whole vector of bytes at any element.
  HWY_ALIGN uint8_t m_code[kMomentBlock + HWY_MAX_BYTES] = {};
  HWY_ALIGN uint8_t v_code[kMomentBlock + HWY_MAX_BYTES] = {};
  std::memcpy(m_code, m_bytes, static_cast<size_t>(count));
  std::memcpy(v_code, v_bytes, static_cast<size_t>(count));
  const VecF32 m_unit = hn::Set(F32(), *m_scale), v_unit = hn::Set(F32(), *v_scale);
  const AdamWLanes adamw(step);
  ForLanes(count, [&](auto at) HAVERSACK_LANES {
    VecF32 m_new = Decode(m_code + at.at, SignedDynamicCode(), m_unit);
    VecF32 v_new = Decode(v_code + at.at, UnsignedDynamicCode(), v_unit);
    adamw.Moments(at.Load(grad), m_new, v_new);
    at.Store(adamw.Weight(at.Load(weight), adamw.Direction(m_new, v_new)), weight);
    at.Store(m_new, m);
    at.Store(v_new, v);
  });
  *m_scale = MaxAbs(m);
  *v_scale = MaxAbs(v);
  EncodeSigned(m, *m_scale, m_code);
  EncodeUnsigned(v, *v_scale, v_code);
  std::memcpy(m_bytes, m_code, static_cast<size_t>(count));
  std::memcpy(v_bytes, v_code, static_cast<size_t>(count));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(AdamWBlock);

void AdamWUpdate8Bit(float* weight, const float* grad, const Moments8Bit& moments, int64_t count,
                     const AdamWStep& step) {
  ParallelFor(MomentBlocks(count), /*grain=*/16, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kMomentBlock;
      HWY_DYNAMIC_DISPATCH(AdamWBlock)
      (weight + begin, grad + begin, moments.m + begin, moments.v + begin, moments.m_scale + block,
       moments.v_scale + block, std::min(kMomentBlock, count - begin), step);
    }
  });
}

}  // namespace haversack
#endif
