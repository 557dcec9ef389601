#include "kernels/attention_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_tile.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace haversack::attention {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile's row may be handled in whole vectors: its stride is a multiple of 16 floats.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVector = hn::Vec<FloatTag>;

// 2^x for x < 128, within 1.5 ulp; below 2^-100 it is 0, which keeps denormals (slow to multiply)
// out of the products. NaN stays NaN. The fraction's power is a polynomial (minimax for the
// relative error on
// [-1/2, 1/2] with 2^0 = 1 exactly), the integer's is built in the exponent field.
HWY_INLINE FloatVector Exp2(FloatTag d, FloatVector x) {
  const hn::RebindToSigned<FloatTag> di;
  // 1.5 * 2^23 rounds the sum to an integer, 127 makes its low bits a biased exponent.
  const auto magic = hn::Set(d, 12582912.0f + 127.0f);
  const auto shifted = hn::Add(x, magic);
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  const auto f = hn::Sub(x, hn::Sub(shifted, magic));
  auto p = hn::Set(d, 0.000155946764f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.00134066434f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.00961769279f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555031039f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240226522f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693147242f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::IfThenZeroElse(hn::Le(x, hn::Set(d, -100.0f)), hn::Mul(p, power));
}

// to[i] = factor * from[i]; `to` may be `from`.
HWY_INLINE void Scale(int64_t count, float factor, const float* from, float* to) {
  const FloatTag d;
  const int64_t lanes = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Mul(f, hn::LoadU(d, from + i)), d, to + i);
  }
  for (; i < count; ++i) to[i] = factor * from[i];
}

void OnlineSoftmax(const ScoreTile& tile, bool first, int64_t head_dim, float* row_max,
                   float* row_sum, float* out) {
  const FloatTag d;
  const int64_t lanes = hn::Lanes(d);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t row = 0; row < tile.tokens * tile.heads; ++row) {
    float* HWY_RESTRICT s = tile.scores + row * tile.stride;
    const int64_t seen = std::min(tile.width, tile.visible + row / tile.heads);
    const int64_t whole = seen / lanes * lanes;
    const auto tail = hn::FirstN(d, seen - whole);
    auto max0 = lowest, max1 = lowest;
    int64_t i = 0;
    for (; i + 2 * lanes <= whole; i += 2 * lanes) {
      max0 = hn::Max(max0, hn::Load(d, s + i));
      max1 = hn::Max(max1, hn::Load(d, s + i + lanes));
    }
    if (i < whole) max0 = hn::Max(max0, hn::Load(d, s + i));
    if (whole < seen) max1 = hn::Max(max1, hn::IfThenElse(tail, hn::Load(d, s + whole), lowest));
    float maximum = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
    if (!first) maximum = std::max(maximum, row_max[row]);

    const auto m = hn::Set(d, maximum);
    auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
    for (i = 0; i + 2 * lanes <= whole; i += 2 * lanes) {
      const auto p0 = Exp2(d, hn::Sub(hn::Load(d, s + i), m));
      const auto p1 = Exp2(d, hn::Sub(hn::Load(d, s + i + lanes), m));
      hn::Store(p0, d, s + i);
      hn::Store(p1, d, s + i + lanes);
      sum0 = hn::Add(sum0, p0);
      sum1 = hn::Add(sum1, p1);
    }
    if (i < whole) {
      const auto p = Exp2(d, hn::Sub(hn::Load(d, s + i), m));
      hn::Store(p, d, s + i);
      sum0 = hn::Add(sum0, p);
      i += lanes;
    }
    if (whole < seen) {
      const auto p = hn::IfThenElseZero(tail, Exp2(d, hn::Sub(hn::Load(d, s + whole), m)));
      hn::Store(p, d, s + whole);
      sum1 = hn::Add(sum1, p);
      i += lanes;
    }
    for (; i < tile.width; i += lanes) hn::Store(hn::Zero(d), d, s + i);
    const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));

    if (first) {
      row_sum[row] = sum;
    } else if (maximum == row_max[row]) {
      row_sum[row] += sum;
    } else {
      const float shrink = hn::GetLane(Exp2(d, hn::Set(d, row_max[row] - maximum)));
      row_sum[row] = row_sum[row] * shrink + sum;
      Scale(head_dim, shrink, out + row * head_dim, out + row * head_dim);
    }
    row_max[row] = maximum;
  }
}

void SoftmaxGradient(const ScoreTile& tile, const float* row_lse2, const float* row_delta,
                     float* d_scores) {
  const FloatTag d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t row = 0; row < tile.tokens * tile.heads; ++row) {
    float* HWY_RESTRICT s = tile.scores + row * tile.stride;
    float* HWY_RESTRICT g = d_scores + row * tile.stride;
    const int64_t seen = std::min(tile.width, tile.visible + row / tile.heads);
    const auto lse2 = hn::Set(d, row_lse2[row]);
    const auto delta = hn::Set(d, row_delta[row]);
    int64_t i = 0;
    for (; i + lanes <= seen; i += lanes) {
      const auto p = Exp2(d, hn::Sub(hn::Load(d, s + i), lse2));
      hn::Store(p, d, s + i);
      hn::Store(hn::Mul(p, hn::Sub(hn::Load(d, g + i), delta)), d, g + i);
    }
    if (i < seen) {
      const auto tail = hn::FirstN(d, seen - i);
      const auto p = hn::IfThenElseZero(tail, Exp2(d, hn::Sub(hn::Load(d, s + i), lse2)));
      const auto ds = hn::Mul(p, hn::Sub(hn::Load(d, g + i), delta));
      hn::Store(p, d, s + i);
      hn::Store(hn::IfThenElseZero(tail, ds), d, g + i);
      i += lanes;
    }
    for (; i < tile.width; i += lanes) {
      hn::Store(hn::Zero(d), d, s + i);
      hn::Store(hn::Zero(d), d, g + i);
    }
  }
}

void NormalizeRows(int64_t tokens, int64_t heads, int64_t head_dim, const float* row_sum,
                   const float* rows, float* to, int64_t stride) {
  for (int64_t row = 0; row < tokens * heads; ++row) {
    Scale(head_dim, 1.0f / row_sum[row], rows + row * head_dim,
          to + row / heads * stride + row % heads * head_dim);
  }
}

void RowDots(int64_t tokens, int64_t heads, int64_t head_dim, const float* rows, const float* other,
             int64_t stride, float* dots) {
  const FloatTag d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t row = 0; row < tokens * heads; ++row) {
    const float* a = rows + row * head_dim;
    const float* b = other + row / heads * stride + row % heads * head_dim;
    auto sum = hn::Zero(d);
    int64_t i = 0;
    for (; i + lanes <= head_dim; i += lanes) {
      sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
    }
    dots[row] = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; i < head_dim; ++i) dots[row] += a[i] * b[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace haversack::attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace haversack::attention {

HWY_EXPORT(OnlineSoftmax);
HWY_EXPORT(SoftmaxGradient);
HWY_EXPORT(NormalizeRows);
HWY_EXPORT(RowDots);

void OnlineSoftmax(const ScoreTile& tile, bool first, int64_t head_dim, float* row_max,
                   float* row_sum, float* out) {
  HWY_DYNAMIC_DISPATCH(OnlineSoftmax)(tile, first, head_dim, row_max, row_sum, out);
}

void SoftmaxGradient(const ScoreTile& tile, const float* row_lse2, const float* row_delta,
                     float* d_scores) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradient)(tile, row_lse2, row_delta, d_scores);
}

void NormalizeRows(int64_t tokens, int64_t heads, int64_t head_dim, const float* row_sum,
                   const float* rows, float* to, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(NormalizeRows)(tokens, heads, head_dim, row_sum, rows, to, stride);
}

void RowDots(int64_t tokens, int64_t heads, int64_t head_dim, const float* rows, const float* other,
             int64_t stride, float* dots) {
  HWY_DYNAMIC_DISPATCH(RowDots)(tokens, heads, head_dim, rows, other, stride, dots);
}

}  // namespace haversack::attention
#endif  // HWY_ONCE
