#include "kernels/layer_norm.h"

#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

constexpr float kEpsilon = 1e-5f;

Doubles ReferenceForward(const Doubles& x, const Doubles& weight, const Doubles& bias,
                         int64_t rows) {
  const int64_t cols = static_cast<int64_t>(weight.size());
  Doubles y(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < cols; ++c) mean += x[r * cols + c] / static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c) {
      variance += std::pow(x[r * cols + c] - mean, 2) / static_cast<double>(cols);
    }
    const double rstd = 1 / std::sqrt(variance + kEpsilon);
    for (int64_t c = 0; c < cols; ++c) {
      y[r * cols + c] = (x[r * cols + c] - mean) * rstd * weight[c] + bias[c];
    }
  }
  return y;
}

struct Inputs {
  Inputs(int64_t rows, int64_t cols, double offset = 0.5)
      : rows(rows),
        cols(cols),
        x(RandomFloats(rows * cols, 1, 2, offset)),
        weight(RandomFloats(cols, 2, 0.5, 1)),
        bias(RandomFloats(cols, 4)),
        dy(RandomFloats(rows * cols, 3)),
        y(x.size()),
        mean(rows),
        rstd(rows) {
    LayerNormForward(x.data(), weight.data(), bias.data(), kEpsilon, rows, cols, y.data(),
                     mean.data(), rstd.data());
  }

  // dx, dweight, dbias.
  Floats Backward() const {
    Floats dx(x.size()), dweight(weight.size()), dbias(weight.size());
    const auto scratch = NanScratch(LayerNormBackwardScratch(rows, cols));
    LayerNormBackward(dy.data(), x.data(), weight.data(), mean.data(), rstd.data(), rows, cols,
                      dx.data(), false, dweight.data(), dbias.data(), false, scratch.get());
    Append(dx, dweight);
    Append(dx, dbias);
    return dx;
  }

  int64_t rows, cols;
  Floats x, weight, bias, dy, y, mean, rstd;
};

struct Shape {
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 2}, {1, 7}, {3, 16}, {2, 65}, {5, 77}, {9, 128}};

// The centred value is off by some roundings of |x| and of the mean, magnified by rstd.
double Roundings(int64_t cols) { return static_cast<double>(cols) + 10; }
double Magnitude(const Inputs& in) {
  const double terms = MaxAbs(ToDouble(in.x)) * MaxAbs(ToDouble(in.rstd));
  return (1 + terms) * std::max(1.0, MaxAbs(ToDouble(in.weight)));
}

TEST(LayerNorm, ForwardMatchesDoubleReference) {
  ForEachTarget([] {
    for (const auto [rows, cols] : kShapes) {
      const Inputs in(rows, cols);
      ExpectClose(in.y,
                  ReferenceForward(ToDouble(in.x), ToDouble(in.weight), ToDouble(in.bias), rows),
                  Roundings(cols), Magnitude(in));
    }
  });
}

TEST(LayerNorm, LargeMeanDoesNotCancelTheVariance) {
  ForEachTarget([] {
    const Inputs in(2, 64, 1000);
    // E[x^2] - E[x]^2 would be off by 1000^2 * 2^-24 = 6% of the variance 4; two passes are off by
    // the rounding of the mean, 1000 * 2^-24, squared.
    Doubles rstd;
    for (int r = 0; r < 2; ++r) {
      double mean = 0, variance = 0;
      for (int c = 0; c < 64; ++c) mean += in.x[r * 64 + c] / 64.0;
      for (int c = 0; c < 64; ++c) variance += std::pow(in.x[r * 64 + c] - mean, 2) / 64;
      rstd.push_back(1 / std::sqrt(variance + kEpsilon));
    }
    ExpectClose(in.rstd, rstd, Roundings(64), 0);
  });
}

TEST(LayerNorm, RebuildIsForwardBitForBitAlsoInPlace) {
  ForEachTarget([] {
    for (const auto [rows, cols] : kShapes) {
      const Inputs in(rows, cols);
      Floats x = in.x;
      LayerNormRebuild(x.data(), in.weight.data(), in.bias.data(), in.mean.data(), in.rstd.data(),
                       rows, cols, x.data());
      ExpectSameBits(x, in.y);
    }
  });
}

TEST(LayerNorm, BackwardMatchesNumericGradient) {
  ForEachTarget([] {
    for (const auto [rows, cols] : kShapes) {
      if (cols < 7) continue;  // two columns: the gradient cancels to almost nothing
      const Inputs in(rows, cols);
      const Doubles x = ToDouble(in.x), weight = ToDouble(in.weight), bias = ToDouble(in.bias);
      Doubles expected = NumericGradient(x, [&, rows = rows](const Doubles& v) {
        return Dot(in.dy, ReferenceForward(v, weight, bias, rows));
      });
      for (const Doubles& part : {NumericGradient(weight,
                                                  [&, rows = rows](const Doubles& v) {
                                                    return Dot(in.dy,
                                                               ReferenceForward(x, v, bias, rows));
                                                  }),
                                  NumericGradient(bias, [&, rows = rows](const Doubles& v) {
                                    return Dot(in.dy, ReferenceForward(x, weight, v, rows));
                                  })}) {
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const double magnitude = MaxAbs(ToDouble(in.dy)) * Magnitude(in) *
                               (2 * MaxAbs(ToDouble(in.rstd)) + static_cast<double>(rows));
      ExpectClose(in.Backward(), expected, Roundings(cols), magnitude);
    }
  });
}

TEST(LayerNorm, BackwardAccumulatesAndMayOverwriteDy) {
  ForEachTarget([] {
    const Inputs in(5, 77);
    const Floats fresh = in.Backward();
    const auto scratch = NanScratch(LayerNormBackwardScratch(5, 77));
    const size_t size = in.x.size();
    Floats dx = in.dy, dweight(77, 1.0f), dbias(77, 3.0f);
    LayerNormBackward(dx.data(), in.x.data(), in.weight.data(), in.mean.data(), in.rstd.data(), 5,
                      77, dx.data(), false, dweight.data(), dbias.data(), true, scratch.get());
    for (size_t i = 0; i < size; ++i) EXPECT_EQ(dx[i], fresh[i]);
    for (size_t c = 0; c < 77; ++c) {
      EXPECT_EQ(dweight[c], 1.0f + fresh[size + c]);
      EXPECT_EQ(dbias[c], 3.0f + fresh[size + 77 + c]);
    }
    Floats sum(size, 2.0f);
    LayerNormBackward(in.dy.data(), in.x.data(), in.weight.data(), in.mean.data(), in.rstd.data(),
                      5, 77, sum.data(), true, dweight.data(), dbias.data(), false, scratch.get());
    for (size_t i = 0; i < size; ++i) EXPECT_EQ(sum[i], 2.0f + fresh[i]);
    for (size_t c = 0; c < 77; ++c) EXPECT_EQ(dbias[c], fresh[size + 77 + c]);
  });
}

TEST(LayerNorm, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      const Inputs in(301, 579);
      Floats all = in.Backward();
      Append(all, in.y);
      Append(all, in.mean);
      Append(all, in.rstd);
      return all;
    });
  });
}

}  // namespace
}  // namespace haversack
