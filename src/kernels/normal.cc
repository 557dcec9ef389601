#include "kernels/normal.h"

#include <algorithm>
#include <cstring>

#include "base/threads.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normal.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using VecU32 = hn::Vec<U32>;

// The upper halves of the products of 32-bit words.
HWY_INLINE VecU32 MulHigh(VecU32 a, uint32_t factor) {
  const U32 d;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, static_cast<uint32_t>((uint64_t{hn::GetLane(a)} * factor) >> 32));
#else
  const hn::RepartitionToWide<U32> d64;
  const VecU32 b = hn::Set(d, factor);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
  return hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
#endif
}

// Philox4x32-10 of as many blocks as there are lanes.
HWY_INLINE void Philox(const RandomStream::Words& words, VecU32 low, VecU32 high, VecU32* c) {
  const U32 d;
  constexpr uint32_t kFactor0 = 0xD2511F53u, kFactor1 = 0xCD9E8D57u;
  c[0] = low;
  c[1] = high;
  c[2] = hn::Set(d, words.counter2);
  c[3] = hn::Set(d, words.counter3);
  uint32_t k0 = words.key0, k1 = words.key1;
  for (int round = 0; round < 10; ++round) {
    const VecU32 high0 = MulHigh(c[0], kFactor0), low0 = hn::Mul(c[0], hn::Set(d, kFactor0));
    const VecU32 high1 = MulHigh(c[2], kFactor1), low1 = hn::Mul(c[2], hn::Set(d, kFactor1));
    c[0] = hn::Xor(high1, hn::Xor(c[1], hn::Set(d, k0)));
    c[1] = low1;
    c[2] = hn::Xor(high0, hn::Xor(c[3], hn::Set(d, k1)));
    c[3] = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// sqrt(-2 ln((word + 1) / 2^32)). With x = (word + 1) / 2 = 2^e m, m in [sqrt(1/2), sqrt(2)):
// ln x = e ln 2 + 2 atanh((m - 1) / (m + 1)), atanh(s) = s (1 + s^2 q(s^2)) with q of degree 2
// (relative error 3e-9; own fit).
HWY_INLINE VecF32 Radius(VecU32 word) {
  const F32 d;
  const I32 di;
  const U32 du;
  const VecF32 half = hn::Set(d, 0.5f);
  const VecF32 odd = hn::ConvertTo(d, hn::BitCast(di, hn::And(word, hn::Set(du, 1))));
  const VecF32 x = hn::Add(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<1>(word))),
                           hn::MulAdd(odd, half, half));
  // Subtracting sqrt(1/2)'s bits leaves the exponent of the m in the wanted range.
  const auto bits = hn::BitCast(di, x);
  const auto root_half = hn::Set(di, 0x3f3504f3);
  const auto exponent = hn::ShiftRight<23>(hn::Sub(bits, root_half));
  const VecF32 m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  const VecF32 one = hn::Set(d, 1.0f);
  const VecF32 s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const VecF32 t = hn::Mul(s, s);
  VecF32 q = hn::MulAdd(hn::Set(d, 0.1479101f), t, hn::Set(d, 0.1999436f));
  q = hn::MulAdd(q, t, hn::Set(d, 0.33333343f));
  const VecF32 minus_log_m = hn::Mul(hn::Set(d, -2.0f), hn::MulAdd(hn::Mul(s, t), q, s));
  // 2^31 is the largest x.
  const VecF32 powers = hn::ConvertTo(d, hn::Sub(hn::Set(di, 31), exponent));
  const VecF32 minus_log = hn::MulAdd(powers, hn::Set(d, 0.69314718f), minus_log_m);
  const VecF32 square = hn::Max(hn::Add(minus_log, minus_log), hn::Zero(d));
  return hn::Sqrt(square);
}

// Cosine and sine of 2 pi word / 2^32: the nearest quarter turn and the rest y, |y| <= pi / 4.
HWY_INLINE void CosSin(VecU32 word, VecF32* cosine, VecF32* sine) {
  const F32 d;
  const I32 di;
  const U32 du;
  const VecU32 quarter = hn::ShiftRight<30>(hn::Add(word, hn::Set(du, 1u << 29)));
  const auto rest = hn::BitCast(di, hn::Sub(word, hn::ShiftLeft<30>(quarter)));
  const VecF32 y = hn::Mul(hn::ConvertTo(d, rest), hn::Set(d, 1.46291808e-9f));  // 2 pi / 2^32
  const VecF32 t = hn::Mul(y, y);
  const VecF32 one = hn::Set(d, 1.0f);
  // sin(y) / y with an error of 1e-8 (own fit), cos(y) by Taylor's series with 2.5e-8.
  VecF32 s = hn::MulAdd(hn::Set(d, -0.00019588f), t, hn::Set(d, 0.00833275f));
  s = hn::MulAdd(s, t, hn::Set(d, -0.16666665f));
  s = hn::MulAdd(hn::Mul(s, t), y, y);
  VecF32 c = hn::MulAdd(hn::Set(d, 1.0f / 40320), t, hn::Set(d, -1.0f / 720));
  c = hn::MulAdd(c, t, hn::Set(d, 1.0f / 24));
  c = hn::MulAdd(c, t, hn::Set(d, -0.5f));
  c = hn::MulAdd(c, t, one);
  const auto bit = [&](VecU32 x, uint32_t mask)
                       HAVERSACK_LANES { return hn::And(x, hn::Set(du, mask)); };
  const auto swap = hn::RebindMask(d, hn::Eq(bit(quarter, 1), hn::Set(du, 1)));
  // Quarters 1 and 2 have a negative cosine, 2 and 3 a negative sine.
  const VecU32 cosine_sign = hn::ShiftLeft<30>(bit(hn::Add(quarter, hn::Set(du, 1)), 2));
  const VecU32 sine_sign = hn::ShiftLeft<30>(bit(quarter, 2));
  const auto signed_as = [&](VecF32 x, VecU32 sign) HAVERSACK_LANES {
    return hn::BitCast(d, hn::Xor(hn::BitCast(du, x), sign));
  };
  *cosine = signed_as(hn::IfThenElse(swap, s, c), cosine_sign);
  *sine = signed_as(hn::IfThenElse(swap, c, s), sine_sign);
}

// Elements 4 block to 4 (block + lanes).
HWY_INLINE void NormalBlocks(const RandomStream::Words& words, uint64_t block, VecF32 scale,
                             float* out) {
  const F32 d;
  const U32 du;
  // Blocks of one call may straddle a multiple of 2^32.
  const VecU32 base = hn::Set(du, static_cast<uint32_t>(block));
  const VecU32 low = hn::Add(base, hn::Iota(du, 0));
  const VecU32 carry = hn::VecFromMask(du, hn::Lt(low, base));
  const VecU32 high = hn::Sub(hn::Set(du, static_cast<uint32_t>(block >> 32)), carry);
  VecU32 c[4];
  Philox(words, low, high, c);
  VecF32 normal[4];
  for (int pair = 0; pair < 2; ++pair) {
    const VecF32 radius = hn::Mul(Radius(c[2 * pair]), scale);
    CosSin(c[2 * pair + 1], &normal[2 * pair], &normal[2 * pair + 1]);
    normal[2 * pair] = hn::Mul(normal[2 * pair], radius);
    normal[2 * pair + 1] = hn::Mul(normal[2 * pair + 1], radius);
  }
  hn::StoreInterleaved4(normal[0], normal[1], normal[2], normal[3], d, out);
}

void NormalSpan(const RandomStream::Words& words, uint64_t first, int64_t count, float scale,
                float* out) {
  const auto chunk = static_cast<int64_t>(4 * hn::Lanes(F32()));
  const VecF32 scales = hn::Set(F32(), scale);
  int64_t done = 0;
  while (done < count) {
    const uint64_t element = first + static_cast<uint64_t>(done);
    const auto skip = static_cast<int64_t>(element % 4);
    const int64_t take = std::min(chunk - skip, count - done);
    if (take == chunk) {
      NormalBlocks(words, element / 4, scales, out + done);
    } else {
      HWY_ALIGN float whole[4 * HWY_MAX_BYTES / sizeof(float)];
      NormalBlocks(words, element / 4, scales, whole);
      std::memcpy(out + done, whole + skip, static_cast<size_t>(take) * sizeof(float));
    }
    done += take;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(NormalSpan);

void FillNormal(const RandomKey& key, uint64_t first, int64_t count, float scale, float* out) {
  constexpr int64_t kPiece = 4096;
  const RandomStream::Words words = RandomStream(key).words();
  ParallelFor((count + kPiece - 1) / kPiece, /*grain=*/1, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * kPiece;
    HWY_DYNAMIC_DISPATCH(NormalSpan)
    (words, first + static_cast<uint64_t>(from), std::min(end * kPiece, count) - from, scale,
     out + from);
  });
}

}  // namespace haversack
#endif
