// bf16: [rows, cols] rounded to nearest.
#include "codec/bf16.h"

#include <cstring>

#include "base/bytes.h"
#include "codec/format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/bf16.cc"
#include "hwy/foreach_target.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace haversack {
namespace HWY_NAMESPACE {
namespace {

using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;

// RoundToBf16 of each lane. Not Highway's own demotion, which truncates on some targets.
HWY_INLINE hn::Vec<U16> RoundLanes(VecF32 v) {
  const U32 d;
  const auto bits = hn::BitCast(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7FFF)));
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000));
  const auto is_nan = hn::RebindMask(d, hn::Ne(v, v));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  return hn::DemoteTo(U16(), hn::BitCast(I32(), upper));
}

HWY_INLINE VecF32 WidenLanes(hn::Vec<U16> v) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), v)));
}

void EncodeBf16(const float* x, int64_t stride, int64_t rows, int64_t cols, uint16_t* out) {
  for (int64_t r = 0; r < rows; ++r, x += stride, out += cols) {
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
    int64_t c = 0;
    for (; c + lanes <= cols; c += lanes) {
      hn::StoreU(RoundLanes(hn::LoadU(F32(), x + c)), U16(), out + c);
    }
    for (; c < cols; ++c) out[c] = RoundToBf16(x[c]);
  }
}

void DecodeBf16(const uint16_t* in, int64_t rows, int64_t cols, float* x, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, x += stride, in += cols) {
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
    int64_t c = 0;
    for (; c + lanes <= cols; c += lanes) {
      hn::StoreU(WidenLanes(hn::LoadU(U16(), in + c)), F32(), x + c);
    }
    for (; c < cols; ++c) x[c] = FromBf16(in[c]);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace haversack
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack {

HWY_EXPORT(EncodeBf16);
HWY_EXPORT(DecodeBf16);

namespace {

class Bf16 final : public CodecFormat {
 public:
  std::string_view name() const override { return "bf16"; }
  bool grouped() const override { return false; }

  size_t EncodedBytes(const CodecSpec& /*codec*/, int64_t rows, int64_t cols) const override {
    return AlignUp(static_cast<uint64_t>(rows * cols) * sizeof(uint16_t), 64);
  }

  void EncodeRows(const EncodedShape& shape, int64_t begin, int64_t end, const float* x,
                  int64_t stride, const Rounding& /*rounding*/, std::byte* out) const override {
    HWY_DYNAMIC_DISPATCH(EncodeBf16)
    (x, stride, end - begin, shape.cols, reinterpret_cast<uint16_t*>(out) + begin * shape.cols);
  }

  void DecodeRows(const EncodedShape& shape, const std::byte* in, int64_t begin, int64_t end,
                  float* x, int64_t stride) const override {
    HWY_DYNAMIC_DISPATCH(DecodeBf16)
    (reinterpret_cast<const uint16_t*>(in) + begin * shape.cols, end - begin, shape.cols, x,
     stride);
  }
};

}  // namespace

const CodecFormat& Bf16Format() {
  static const Bf16 format;
  return format;
}

}  // namespace haversack
#endif
