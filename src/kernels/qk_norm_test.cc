#include "kernels/qk_norm.h"

#include <algorithm>

#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

constexpr float kEpsilon = 1e-6f;

struct Case {
  int64_t rows, q_heads, kv_heads, head_dim, padding;
};
constexpr Case kCases[] = {{1, 1, 1, 2, 0}, {3, 2, 1, 6, 5}, {4, 3, 2, 64, 64}, {2, 2, 2, 34, 3}};

struct Inputs {
  explicit Inputs(const Case& c)
      : c(c),
        heads(c.q_heads + c.kv_heads),
        width(heads * c.head_dim),
        stride(width + c.padding),
        x(RandomFloats(c.rows * stride, 1, 2)),
        q_weight(RandomFloats(c.head_dim, 2, 0.5, 1)),
        k_weight(RandomFloats(c.head_dim, 3, 0.5, 1)),
        dy(RandomFloats(c.rows * width, 4)),
        positions(RandomIds(c.rows, 5, 40)),
        y(dy.size()),
        rstd(c.rows * heads) {
    for (int64_t i = 0; i < 40 * c.head_dim / 2; ++i) {
      cos.push_back(static_cast<float>(std::cos(0.1 * static_cast<double>(i))));
      sin.push_back(static_cast<float>(std::sin(0.1 * static_cast<double>(i))));
    }
    QkNormRopeForward(x.data(), stride, c.rows, c.q_heads, c.kv_heads, c.head_dim, q_weight.data(),
                      k_weight.data(), kEpsilon, positions.data(), cos.data(), sin.data(), y.data(),
                      rstd.data());
  }

  Doubles Reference(const Doubles& x_in, const Doubles& q_w, const Doubles& k_w) const {
    const int64_t dim = c.head_dim, half = dim / 2;
    Doubles out(dy.size());
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        const double* head = &x_in[r * stride + h * dim];
        const Doubles& weight = h < c.q_heads ? q_w : k_w;
        double squares = 0;
        for (int64_t i = 0; i < dim; ++i) squares += head[i] * head[i];
        const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + kEpsilon);
        for (int64_t i = 0; i < dim; ++i) {
          const int64_t other = i < half ? i + half : i - half;
          const int64_t table = positions[r] * half + i % half;
          const double rotated = (i < half ? -1 : 1) * head[other] * scale * weight[other];
          out[(r * heads + h) * dim + i] =
              head[i] * scale * weight[i] * cos[table] + rotated * sin[table];
        }
      }
    }
    return out;
  }

  // dx with its row stride (padding zero), dq_weight, dk_weight.
  Floats Backward(float start, bool accumulate) const {
    Floats dx(x.size(), 0.0f), dq(c.head_dim, start), dk(c.head_dim, start);
    const auto scratch = NanScratch(QkNormRopeBackwardScratch(c.rows, c.head_dim));
    QkNormRopeBackward(dy.data(), x.data(), stride, c.rows, c.q_heads, c.kv_heads, c.head_dim,
                       q_weight.data(), k_weight.data(), rstd.data(), positions.data(), cos.data(),
                       sin.data(), dx.data(), stride, dq.data(), dk.data(), accumulate,
                       scratch.get());
    Append(dx, dq);
    Append(dx, dk);
    return dx;
  }

  Case c;
  int64_t heads, width, stride;
  Floats x, q_weight, k_weight, dy;
  std::vector<int32_t> positions;
  Floats y, rstd, cos, sin;
};

TEST(QkNorm, ForwardMatchesDoubleReference) {
  ForEachTarget([] {
    for (const Case& c : kCases) {
      const Inputs in(c);
      const Doubles expected =
          in.Reference(ToDouble(in.x), ToDouble(in.q_weight), ToDouble(in.k_weight));
      // Norm: head_dim / 2 + 8 (see RmsNorm); rotation: 2, of two terms.
      const double terms = MaxAbs(ToDouble(in.x)) * MaxAbs(ToDouble(in.rstd)) *
                           std::max(MaxAbs(ToDouble(in.q_weight)), MaxAbs(ToDouble(in.k_weight)));
      ExpectClose(in.y, expected, static_cast<double>(c.head_dim) / 2 + 10, 2 * terms);
    }
  });
}

TEST(QkNorm, BackwardMatchesNumericGradient) {
  ForEachTarget([] {
    for (const Case& c : kCases) {
      const Inputs in(c);
      const Doubles x = ToDouble(in.x), q = ToDouble(in.q_weight), k = ToDouble(in.k_weight);
      Doubles expected =
          NumericGradient(x, [&](const Doubles& v) { return Dot(in.dy, in.Reference(v, q, k)); });
      const Doubles dq =
          NumericGradient(q, [&](const Doubles& v) { return Dot(in.dy, in.Reference(x, v, k)); });
      const Doubles dk =
          NumericGradient(k, [&](const Doubles& v) { return Dot(in.dy, in.Reference(x, q, v)); });
      expected.insert(expected.end(), dq.begin(), dq.end());
      expected.insert(expected.end(), dk.begin(), dk.end());
      const double g = 2 * MaxAbs(ToDouble(in.dy)) * std::max(MaxAbs(q), MaxAbs(k));
      const double magnitude =
          g * (2 * MaxAbs(ToDouble(in.rstd)) + 3 * static_cast<double>(c.rows * in.heads));
      const Floats actual = in.Backward(7, false);
      ExpectClose(actual, expected, static_cast<double>(c.head_dim) / 2 + 12, magnitude);
      const Floats accumulated = in.Backward(7, true);
      for (size_t i = in.x.size(); i < actual.size(); ++i) {
        EXPECT_EQ(accumulated[i], 7 + actual[i]);
      }
    }
  });
}

TEST(QkNorm, BackwardMayOverwriteDy) {
  ForEachTarget([] {
    const Inputs in({3, 2, 1, 34, 0});
    const Floats fresh = in.Backward(0, false);
    Floats dx = in.dy, dq(34), dk(34);
    const auto scratch = NanScratch(QkNormRopeBackwardScratch(3, 34));
    QkNormRopeBackward(dx.data(), in.x.data(), in.stride, 3, 2, 1, 34, in.q_weight.data(),
                       in.k_weight.data(), in.rstd.data(), in.positions.data(), in.cos.data(),
                       in.sin.data(), dx.data(), in.width, dq.data(), dk.data(), false,
                       scratch.get());
    Append(dx, dq);
    Append(dx, dk);
    ExpectSameBits(dx, fresh);
  });
}

TEST(QkNorm, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      const Inputs in({301, 4, 2, 64, 16});
      Floats all = in.Backward(0, false);
      Append(all, in.y);
      Append(all, in.rstd);
      return all;
    });
  });
}

}  // namespace
}  // namespace haversack
