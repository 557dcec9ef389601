// int4: codes 0 to 15 times the group's step above the group's minimum. A chunk is 16 bytes:
// columns j and j + 16 are the lower and the upper half of byte j.
#include <cmath>

#include "codec/grouped.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/int4.cc"
#include "hwy/foreach_target.h"
// Once a target, so after foreach_target.h.
#include "codec/grouped-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

using ChunkU8 = hn::Rebind<uint8_t, ChunkF32>;

constexpr float kLargestCode = 15;

// Lane by lane the least and the largest x of a group, and what is NaN if any x is not finite.
struct LaneRange {
  ChunkVec low;
  ChunkVec high;
};

HWY_INLINE LaneRange GroupRange(const GroupedLayout& layout, const ExcludedColumns& excluded,
                                const float* x, int64_t g, ChunkVec& poison) {
  const ChunkF32 d;
  const int64_t lanes = ChunkLanes();
  const int64_t count = HWY_MIN(layout.group, layout.width - g * layout.group);
  const float* group = x + g * layout.group;
  const int32_t* mask = excluded.Mask(g);
  const auto zero = hn::Zero(d);  // its product with what is not finite is NaN
  LaneRange range;
  if (mask == nullptr) {
    range.low = range.high = hn::LoadU(d, group);
    for (int64_t c = 0; c < count; c += 2 * lanes) {
      const auto a = hn::LoadU(d, group + c), b = hn::LoadU(d, group + c + lanes);
      range.low = hn::Min(range.low, hn::Min(a, b));
      range.high = hn::Max(range.high, hn::Max(a, b));
      poison = hn::MulAdd(b, zero, hn::MulAdd(a, zero, poison));
    }
  } else {
    const auto substitute = hn::Set(d, excluded.Substitute(g, x));
    range.low = range.high = substitute;
    for (int64_t c = 0; c < count; c += lanes) {
      const auto out = hn::MaskFromVec(hn::BitCast(d, hn::LoadU(ChunkI32(), mask + c)));
      const auto v = hn::IfThenElse(out, substitute, hn::LoadU(d, group + c));
      range.low = hn::Min(range.low, v);
      range.high = hn::Max(range.high, v);
      poison = hn::MulAdd(v, zero, poison);
    }
  }
  return range;
}

// Marks the groups that hold a NaN or an infinity. Rare, so plain.
HWY_NOINLINE void MarkNonFinite(const GroupedLayout& layout, const ExcludedColumns& excluded,
                                const float* x, float* highs) {
  for (int64_t c = 0; c < layout.width; ++c) {
    const int64_t g = c >> layout.group_log2;
    const int32_t* mask = excluded.Mask(g);
    const bool counts = mask == nullptr || mask[c % layout.group] == 0;
    if (counts && !std::isfinite(x[c])) highs[g] = std::numeric_limits<float>::quiet_NaN();
  }
}

// Least and largest x of each group; the largest is NaN where the group holds a NaN or an infinity.
HWY_INLINE void GroupRanges(const GroupedLayout& layout, const ExcludedColumns& excluded,
                            const float* x, float* lows, float* highs) {
  const ChunkF32 d;
  auto poison = hn::Zero(d);
  const auto range = [&](int64_t g) HAVERSACK_LANES {
    return GroupRange(layout, excluded, x, HWY_MIN(g, layout.groups - 1), poison);
  };
  for (int64_t g = 0; g < layout.groups; g += 4) {
    const LaneRange r0 = range(g), r1 = range(g + 1), r2 = range(g + 2), r3 = range(g + 3);
    StoreReducedQuad(
        d, r0.low, r1.low, r2.low, r3.low,
        [](auto a, auto b) HAVERSACK_LANES { return hn::Min(a, b); }, lows + g);
    StoreReducedQuad(
        d, r0.high, r1.high, r2.high, r3.high,
        [](auto a, auto b) HAVERSACK_LANES { return hn::Max(a, b); }, highs + g);
  }
  if (!hn::AllTrue(d, hn::Eq(poison, hn::Zero(d)))) MarkNonFinite(layout, excluded, x, highs);
}

// The largest bf16 that is at most v.
HWY_INLINE ChunkVec FloorToBf16(ChunkVec v) {
  const ChunkU32 d;
  const auto bits = hn::BitCast(d, v);
  const auto negative = hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(ChunkI32(), v)));
  return ClearLowerHalves(hn::Add(bits, hn::And(negative, hn::Set(d, 0xFFFFu))));
}

// Minima and steps of the groups, as stored and, for encoding, in scratch.low and scratch.inverse.
HWY_INLINE void GroupSteps(const GroupedLayout& layout, bool stochastic,
                           const GroupScratch& scratch) {
  const ChunkF32 d;
  const auto units = hn::Set(d, stochastic ? kRandomUnits : 1.0f);
  for (int64_t g = 0; g < layout.groups; g += ChunkLanes()) {
    const auto low = FloorToBf16(hn::Load(d, scratch.low + g));
    const auto step =
        GroupStep(hn::Sub(hn::Load(d, scratch.high + g), low), kLargestCode, stochastic);
    hn::Store(low, d, scratch.low + g);
    hn::Store(hn::Div(units, step), d, scratch.inverse + g);
    StoreUpperHalves(low, scratch.minima + g);
    StoreUpperHalves(step, scratch.scales + g);
  }
}

template <bool kStochastic>
HWY_INLINE void EncodeChunk(const float* x, float minimum, float inverse, RowKey key,
                            int64_t column, uint8_t* codes) {
  const ChunkF32 d;
  const auto low = hn::Set(d, minimum);
  const auto scale = hn::Set(d, inverse);
  const int64_t lanes = ChunkLanes();
  for (int64_t j = 0; j < kChunk / 2; j += lanes) {
    const auto a = hn::Mul(hn::Sub(hn::LoadU(d, x + j), low), scale);
    const auto b = hn::Mul(hn::Sub(hn::LoadU(d, x + j + kChunk / 2), low), scale);
    hn::Vec<ChunkU32> lower, upper;
    if constexpr (kStochastic) {
      const auto a_sum = AddRandom(a, RandomBits(key, column + j));
      const auto b_sum = AddRandom(b, RandomBits(key, column + j + kChunk / 2));
      lower = hn::ShiftRight<kRandomBits>(a_sum);
      upper = hn::ShiftRight<kRandomBits - 4>(b_sum);
    } else {
      lower = RoundIntoLowBits(a);
      upper = hn::ShiftLeft<4>(RoundIntoLowBits(b));
    }
    StoreBytes(hn::Or(hn::And(lower, hn::Set(ChunkU32(), 0x0F)),
                      hn::And(upper, hn::Set(ChunkU32(), 0xF0))),
               codes + j);
  }
}

template <bool kStochastic>
HWY_INLINE void EncodeCodes(const GroupedLayout& layout, const float* x, const float* next,
                            RowKey key, const float* low, const float* inverse, uint8_t* codes) {
  // Copies: to the compiler, a store of bytes may change what a reference leads to.
  const int64_t width = layout.width;
  const int group_log2 = layout.group_log2;
  for (int64_t c = 0; c < width; c += kChunk) {
    hwy::Prefetch(next + c);
    hwy::Prefetch(next + c + kChunk / 2);
    const int64_t g = c >> group_log2;
    EncodeChunk<kStochastic>(x + c, low[g], inverse[g], key, c, codes + c / 2);
  }
}

void EncodeInt4Row(const GroupedLayout& layout, const ExcludedColumns& excluded, const float* x,
                   const float* next, const RowKey* key, const GroupScratch& scratch,
                   const GroupedRow& out) {
  GroupRanges(layout, excluded, x, scratch.low, scratch.high);
  GroupSteps(layout, key != nullptr, scratch);
  const size_t group_bytes = static_cast<size_t>(layout.groups) * sizeof(uint16_t);
  std::memcpy(out.scales, scratch.scales, group_bytes);
  std::memcpy(out.minima, scratch.minima, group_bytes);
  if (key != nullptr) {
    EncodeCodes<true>(layout, x, next, *key, scratch.low, scratch.inverse, out.codes);
  } else {
    EncodeCodes<false>(layout, x, next, {}, scratch.low, scratch.inverse, out.codes);
  }
}

void DecodeInt4Chunks(const GroupedLayout& layout, const ConstGroupedRow& in, int64_t first,
                      int64_t last, float* x) {
  const int group_log2 = layout.group_log2;  // copies: stores of vectors may alias anything
  const uint16_t* scales = in.scales;
  const uint16_t* minima = in.minima;
  const uint8_t* codes = in.codes;
  const ChunkF32 d;
  const ChunkI32 di;
  const int64_t lanes = ChunkLanes();
  const auto mask = hn::Set(di, 15);
  for (int64_t c = first * kChunk; c < last * kChunk; c += kChunk, x += kChunk) {
    const auto step = hn::Set(d, WidenBf16(scales[c >> group_log2]));
    const auto low = hn::Set(d, WidenBf16(minima[c >> group_log2]));
    for (int64_t j = 0; j < kChunk / 2; j += lanes) {
      const auto both = hn::PromoteTo(di, hn::LoadU(ChunkU8(), codes + c / 2 + j));
      const auto a = hn::ConvertTo(d, hn::And(both, mask));
      const auto b = hn::ConvertTo(d, hn::ShiftRight<4>(both));
      hn::StoreU(hn::MulAdd(a, step, low), d, x + j);
      hn::StoreU(hn::MulAdd(b, step, low), d, x + j + kChunk / 2);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(EncodeInt4Row);
HWY_EXPORT(DecodeInt4Chunks);

const CodecFormat& Int4Format() {
  static const GroupedFormat format("int4", {.bits = 4, .minimum = true}, [] {
    return GroupedKernels{&HWY_DYNAMIC_DISPATCH(EncodeInt4Row),
                          &HWY_DYNAMIC_DISPATCH(DecodeInt4Chunks)};
  });
  return format;
}

}  // namespace haversack
#endif
