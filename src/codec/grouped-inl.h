// What the grouped codecs' kernels share: steps in bf16, and the random numbers of stochastic
// rounding. Included once a target, inside a file that foreach_target.h re-includes.
#if defined(HAVERSACK_CODEC_GROUPED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAVERSACK_CODEC_GROUPED_INL_H_
#undef HAVERSACK_CODEC_GROUPED_INL_H_
#else
#define HAVERSACK_CODEC_GROUPED_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include "codec/grouped.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most half a chunk, so that lanes never cross one.
using ChunkF32 = hn::CappedTag<float, kChunk / 2>;
using ChunkI32 = hn::RebindToSigned<ChunkF32>;
using ChunkU32 = hn::RebindToUnsigned<ChunkF32>;
using ChunkU16 = hn::Rebind<uint16_t, ChunkF32>;
using ChunkVec = hn::Vec<ChunkF32>;
using ChunkInts = hn::Vec<ChunkI32>;

HWY_INLINE int64_t ChunkLanes() { return static_cast<int64_t>(hn::Lanes(ChunkF32())); }

// No group's step is smaller, so that kRandomUnits / step is finite: what is below 2^-111 decodes
// to 0.
constexpr float kSmallestStep = 0x1p-110f;
// Stochastic rounding adds this many random bits below the code's last one, to codes in units of
// 2^-15. The unit is larger by 2^-22 of itself, so that rounding errors never carry a group's
// largest value past the last code; the bias, 2^-15 of a step at most, is that of 15 random bits
// anyway.
constexpr int kRandomBits = 15;
constexpr float kRandomUnits = 0x1p15f * (1 - 0x1p-22f);

// A number of at most 2^22 in magnitude, added to 1.5 * 2^23, is rounded to the nearest integer and
// leaves it, in two's complement, in the lower bits.
HWY_INLINE hn::Vec<ChunkU32> RoundIntoLowBits(ChunkVec v) {
  return hn::BitCast(ChunkU32(), hn::Add(v, hn::Set(ChunkF32(), 12582912.0f)));
}

// Stores u32 lanes below 256.
HWY_INLINE void StoreBytes(hn::Vec<ChunkU32> v, uint8_t* out) {
  hn::StoreU(hn::U8FromU32(v), hn::Rebind<uint8_t, ChunkU32>(), out);
}

// combine() over the lanes of each of four vectors, to out[0..4).
template <typename D, typename V, typename Combine>
HWY_INLINE void StoreReducedQuad(D d, V v0, V v1, V v2, V v3, const Combine& combine,
                                 hn::TFromD<D>* out) {
#if HWY_TARGET == HWY_SCALAR
  (void)combine;
  const V lanes[4] = {v0, v1, v2, v3};
  for (size_t i = 0; i < 4; ++i) hn::Store(lanes[i], d, out + i);
#else
  const hn::Repartition<uint64_t, D> pairs;
  const hn::FixedTag<hn::TFromD<D>, 4> quad;
  // Blocks of four lanes: [v0 v1 v0 v1], then one lane of each.
  const auto v01 = combine(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1));
  const auto v23 = combine(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3));
  const auto a = hn::BitCast(pairs, v01), b = hn::BitCast(pairs, v23);
  const auto all = combine(hn::BitCast(d, hn::InterleaveLower(pairs, a, b)),
                           hn::BitCast(d, hn::InterleaveUpper(pairs, a, b)));
  HWY_ALIGN hn::TFromD<D> blocks[kChunk / 2];
  hn::Store(all, d, blocks);
  auto reduced = hn::Load(quad, blocks);
  for (size_t i = 4; i < hn::Lanes(d); i += 4)
    reduced = combine(reduced, hn::Load(quad, blocks + i));
  hn::StoreU(reduced, quad, out);
#endif
}

// The upper halves of f32 lanes.
HWY_INLINE void StoreUpperHalves(ChunkVec v, uint16_t* out) {
  const auto upper = hn::ShiftRight<16>(hn::BitCast(ChunkU32(), v));
  hn::StoreU(hn::DemoteTo(ChunkU16(), hn::BitCast(ChunkI32(), upper)), ChunkU16(), out);
}

HWY_INLINE ChunkVec ClearLowerHalves(hn::Vec<ChunkU32> bits) {
  return hn::BitCast(ChunkF32(), hn::And(bits, hn::Set(ChunkU32(), 0xFFFF0000u)));
}

// Steps in bf16 for `range` (>= 0) over `codes` steps; NaN for a range that is not finite. For
// nearest rounding of values, the nearest step: where it is too small, by 2^-8 at most, the last
// code is still less than half a step (127 * 2^-8) from the range's end. For stochastic rounding,
// which clipping would bias, the next step that covers the range.
HWY_INLINE ChunkVec GroupStep(ChunkVec range, float codes, bool covering) {
  const ChunkF32 d;
  const ChunkU32 du;
  const auto exact = hn::Max(hn::Mul(range, hn::Set(d, 1 / codes)), hn::Set(d, kSmallestStep));
  const auto step =
      ClearLowerHalves(hn::Add(hn::BitCast(du, exact), hn::Set(du, covering ? 0xFFFFu : 0x8000u)));
  const auto finite = hn::Lt(range, hn::Set(d, std::numeric_limits<float>::infinity()));
  return hn::IfThenElse(finite, step, hn::Set(d, std::numeric_limits<float>::quiet_NaN()));
}

// The 15 random bits of columns [column, column + lanes): the upper ones of a * column + b modulo
// 2^32, with a and b 64 bits of Philox that belong to the row. Rows are independent, and within a
// row two columns are exactly (Dietzfelbinger, "Universal hashing and k-wise independent random
// variables via integer arithmetic without primes", STACS 1996: up to 2^18 columns), which is all
// that the squared error of a sum depends on. An addition and a shift, where Philox for every
// column would cost more than the codec.
HWY_INLINE hn::Vec<ChunkU32> RandomBits(const RowKey& key, int64_t column) {
  const ChunkU32 d;
  const auto lanes = hn::Mul(hn::Iota(d, 0), hn::Set(d, key.slope));
  const auto first = static_cast<uint32_t>(column) * key.slope + key.offset;
  return hn::ShiftRight<32 - kRandomBits>(hn::Add(lanes, hn::Set(d, first)));
}

// For a code in random units: above its kRandomBits lowest bits, floor(code + random), whose bits
// from the eighth on are those of an unrelated constant, the eighth inverted.
HWY_INLINE hn::Vec<ChunkU32> AddRandom(ChunkVec units, hn::Vec<ChunkU32> random) {
  return hn::Add(RoundIntoLowBits(units), random);
}

HWY_INLINE float WidenBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#endif
