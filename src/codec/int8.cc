// int8: codes -127 to 127 times the group's step, symmetric about zero.
#include "codec/grouped.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/int8.cc"
#include "hwy/foreach_target.h"
// Once a target, so after foreach_target.h.
#include "codec/grouped-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

using ChunkI8 = hn::Rebind<int8_t, ChunkF32>;

constexpr float kLargestCode = 127;

// Lane by lane the largest |x| of group g, as bits: NaN and infinity stand above all numbers.
HWY_INLINE ChunkInts GroupMaximum(const GroupedLayout& layout, const ExcludedColumns& excluded,
                                  const float* x, int64_t g) {
  const ChunkI32 d;
  const auto magnitude = hn::Set(d, 0x7FFFFFFF);
  const int64_t lanes = ChunkLanes();
  const int64_t count = HWY_MIN(layout.group, layout.width - g * layout.group);
  const float* group = x + g * layout.group;
  const int32_t* mask = excluded.Mask(g);
  auto max = hn::Zero(d);
  if (mask == nullptr) {
    for (int64_t c = 0; c < count; c += 2 * lanes) {
      const auto a = hn::BitCast(d, hn::LoadU(ChunkF32(), group + c));
      const auto b = hn::BitCast(d, hn::LoadU(ChunkF32(), group + c + lanes));
      max = hn::Max(max, hn::Max(hn::And(a, magnitude), hn::And(b, magnitude)));
    }
  } else {
    for (int64_t c = 0; c < count; c += lanes) {
      const auto v = hn::BitCast(d, hn::LoadU(ChunkF32(), group + c));
      max = hn::Max(max, hn::And(hn::AndNot(hn::LoadU(d, mask + c), v), magnitude));
    }
  }
  return max;
}

HWY_INLINE void GroupMaxima(const GroupedLayout& layout, const ExcludedColumns& excluded,
                            const float* x, float* maxima) {
  const auto maximum = [&](int64_t g) HAVERSACK_LANES {
    return GroupMaximum(layout, excluded, x, HWY_MIN(g, layout.groups - 1));
  };
  for (int64_t g = 0; g < layout.groups; g += 4) {
    HWY_ALIGN int32_t bits[4];
    StoreReducedQuad(
        ChunkI32(), maximum(g), maximum(g + 1), maximum(g + 2), maximum(g + 3),
        [](auto a, auto b) HAVERSACK_LANES { return hn::Max(a, b); }, bits);
    std::memcpy(maxima + g, bits, sizeof(bits));
  }
}

// Steps of the groups, into scratch.scales and, inverted, scratch.inverse.
HWY_INLINE void GroupSteps(const GroupedLayout& layout, bool stochastic,
                           const GroupScratch& scratch) {
  const ChunkF32 d;
  const auto units = hn::Set(d, stochastic ? kRandomUnits : 1.0f);
  for (int64_t g = 0; g < layout.groups; g += ChunkLanes()) {
    const auto step = GroupStep(hn::Load(d, scratch.high + g), kLargestCode, stochastic);
    hn::Store(hn::Div(units, step), d, scratch.inverse + g);
    StoreUpperHalves(step, scratch.scales + g);
  }
}

template <bool kStochastic>
HWY_INLINE void EncodeChunk(const float* x, float inverse, RowKey key, int64_t column,
                            uint8_t* codes) {
  const ChunkF32 d;
  const auto scale = hn::Set(d, inverse);
  const int64_t lanes = ChunkLanes();
  for (int64_t j = 0; j < kChunk / 2; j += lanes) {
    const auto low = hn::Mul(hn::LoadU(d, x + j), scale);
    const auto high = hn::Mul(hn::LoadU(d, x + j + kChunk / 2), scale);
    hn::Vec<ChunkU32> low_code, high_code;
    if constexpr (kStochastic) {
      const auto low_sum = AddRandom(low, RandomBits(key, column + j));
      const auto high_sum = AddRandom(high, RandomBits(key, column + j + kChunk / 2));
      const auto sign = hn::Set(ChunkU32(), 0x80);
      low_code = hn::Xor(hn::ShiftRight<kRandomBits>(low_sum), sign);
      high_code = hn::Xor(hn::ShiftRight<kRandomBits>(high_sum), sign);
    } else {
      low_code = RoundIntoLowBits(low);
      high_code = RoundIntoLowBits(high);
    }
    const auto byte = hn::Set(ChunkU32(), 0xFF);
    StoreBytes(hn::And(low_code, byte), codes + j);
    StoreBytes(hn::And(high_code, byte), codes + j + kChunk / 2);
  }
}

template <bool kStochastic>
HWY_INLINE void EncodeCodes(const GroupedLayout& layout, const float* x, const float* next,
                            RowKey key, const float* inverse, uint8_t* codes) {
  // Copies: to the compiler, a store of bytes may change what a reference leads to.
  const int64_t width = layout.width;
  const int group_log2 = layout.group_log2;
  for (int64_t c = 0; c < width; c += kChunk) {
    hwy::Prefetch(next + c);
    hwy::Prefetch(next + c + kChunk / 2);
    EncodeChunk<kStochastic>(x + c, inverse[c >> group_log2], key, c, codes + c);
  }
}

void EncodeInt8Row(const GroupedLayout& layout, const ExcludedColumns& excluded, const float* x,
                   const float* next, const RowKey* key, const GroupScratch& scratch,
                   const GroupedRow& out) {
  GroupMaxima(layout, excluded, x, scratch.high);
  GroupSteps(layout, key != nullptr, scratch);
  std::memcpy(out.scales, scratch.scales, static_cast<size_t>(layout.groups) * sizeof(uint16_t));
  if (key != nullptr) {
    EncodeCodes<true>(layout, x, next, *key, scratch.inverse, out.codes);
  } else {
    EncodeCodes<false>(layout, x, next, {}, scratch.inverse, out.codes);
  }
}

void DecodeInt8Chunks(const GroupedLayout& layout, const ConstGroupedRow& in, int64_t first,
                      int64_t last, float* x) {
  const int group_log2 = layout.group_log2;  // copies: stores of vectors may alias anything
  const uint16_t* scales = in.scales;
  const auto* codes = reinterpret_cast<const int8_t*>(in.codes);
  const ChunkF32 d;
  const int64_t lanes = ChunkLanes();
  for (int64_t c = first * kChunk; c < last * kChunk; c += kChunk, x += kChunk) {
    const auto step = hn::Set(d, WidenBf16(scales[c >> group_log2]));
    for (int64_t j = 0; j < kChunk; j += lanes) {
      const auto code = hn::PromoteTo(ChunkI32(), hn::LoadU(ChunkI8(), codes + c + j));
      hn::StoreU(hn::Mul(hn::ConvertTo(d, code), step), d, x + j);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(EncodeInt8Row);
HWY_EXPORT(DecodeInt8Chunks);

const CodecFormat& Int8Format() {
  static const GroupedFormat format("int8", {.bits = 8, .minimum = false}, [] {
    return GroupedKernels{&HWY_DYNAMIC_DISPATCH(EncodeInt8Row),
                          &HWY_DYNAMIC_DISPATCH(DecodeInt8Chunks)};
  });
  return format;
}

}  // namespace haversack
#endif
