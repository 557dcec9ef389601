#include "kernels/rms_norm.h"

#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

constexpr float kEpsilon = 1e-5f;

Doubles ReferenceForward(const Doubles& x, const Doubles& weight, int64_t rows, Doubles* rstd) {
  const int64_t cols = static_cast<int64_t>(weight.size());
  Doubles y(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < cols; ++c) squares += x[r * cols + c] * x[r * cols + c];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + kEpsilon);
    if (rstd) rstd->push_back(scale);
    for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * scale * weight[c];
  }
  return y;
}

struct Inputs {
  Inputs(int64_t rows, int64_t cols)
      : rows(rows),
        cols(cols),
        x(RandomFloats(rows * cols, 1, 2)),
        weight(RandomFloats(cols, 2, 0.5, 1)),
        dy(RandomFloats(rows * cols, 3)),
        y(x.size()),
        rstd(rows) {
    RmsNormForward(x.data(), weight.data(), kEpsilon, rows, cols, y.data(), rstd.data());
  }

  // dx, then dweight.
  Floats Backward() const {
    Floats dx(x.size()), dweight(weight.size());
    const auto scratch = NanScratch(RmsNormBackwardScratch(rows, cols));
    RmsNormBackward(dy.data(), x.data(), weight.data(), rstd.data(), rows, cols, dx.data(), false,
                    dweight.data(), false, scratch.get());
    Append(dx, dweight);
    return dx;
  }

  int64_t rows, cols;
  Floats x, weight, dy, y, rstd;
};

struct Shape {
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {1, 7}, {3, 16}, {2, 65}, {5, 77}, {9, 128}};

TEST(RmsNorm, ForwardMatchesDoubleReference) {
  ForEachTarget([] {
    for (const auto [rows, cols] : kShapes) {
      const Inputs in(rows, cols);
      Doubles rstd;
      const Doubles y = ReferenceForward(ToDouble(in.x), ToDouble(in.weight), rows, &rstd);
      // A sum of cols squares, half of whose relative error goes into rstd, and 6 more operations.
      const double roundings = static_cast<double>(cols) / 2 + 6;
      ExpectClose(in.rstd, rstd, roundings, 0);
      ExpectClose(in.y, y, roundings + 2, 0);
    }
  });
}

TEST(RmsNorm, RebuildIsForwardBitForBitAlsoInPlace) {
  ForEachTarget([] {
    for (const auto [rows, cols] : kShapes) {
      const Inputs in(rows, cols);
      Floats y(in.x.size());
      RmsNormRebuild(in.x.data(), in.weight.data(), in.rstd.data(), rows, cols, y.data());
      ExpectSameBits(y, in.y);
      Floats x = in.x;
      RmsNormRebuild(x.data(), in.weight.data(), in.rstd.data(), rows, cols, x.data());
      ExpectSameBits(x, in.y);
    }
  });
}

TEST(RmsNorm, BackwardMatchesNumericGradient) {
  ForEachTarget([] {
    for (const auto [rows, cols] : kShapes) {
      const Inputs in(rows, cols);
      const Doubles x = ToDouble(in.x), weight = ToDouble(in.weight);
      Doubles expected = NumericGradient(x, [&, rows = rows](const Doubles& v) {
        return Dot(in.dy, ReferenceForward(v, weight, rows, nullptr));
      });
      const Doubles dweight = NumericGradient(weight, [&, rows = rows](const Doubles& v) {
        return Dot(in.dy, ReferenceForward(x, v, rows, nullptr));
      });
      expected.insert(expected.end(), dweight.begin(), dweight.end());
      // Terms: dy * weight * rstd times at most cols (|h|^2 <= cols), and dy * h over rows.
      const double largest_rstd = MaxAbs(ToDouble(in.rstd));
      const double g = MaxAbs(ToDouble(in.dy)) * std::max(1.0, MaxAbs(weight));
      const double magnitude = g * (largest_rstd * 2 + static_cast<double>(rows) * 3);
      ExpectClose(in.Backward(), expected, static_cast<double>(cols) / 2 + 10, magnitude);
    }
  });
}

TEST(RmsNorm, BackwardAccumulatesAndMayOverwriteDy) {
  ForEachTarget([] {
    const Inputs in(5, 77);
    const Floats fresh = in.Backward();
    const auto scratch = NanScratch(RmsNormBackwardScratch(5, 77));
    Floats dx = in.dy, dweight(77, 1.0f);
    RmsNormBackward(dx.data(), in.x.data(), in.weight.data(), in.rstd.data(), 5, 77, dx.data(),
                    false, dweight.data(), true, scratch.get());
    for (size_t i = 0; i < dx.size(); ++i) EXPECT_EQ(dx[i], fresh[i]);
    for (size_t c = 0; c < 77; ++c) EXPECT_EQ(dweight[c], 1.0f + fresh[dx.size() + c]);
    Floats sum(dx.size(), 2.0f);
    RmsNormBackward(in.dy.data(), in.x.data(), in.weight.data(), in.rstd.data(), 5, 77, sum.data(),
                    true, dweight.data(), false, scratch.get());
    for (size_t i = 0; i < dx.size(); ++i) EXPECT_EQ(sum[i], 2.0f + fresh[i]);
    for (size_t c = 0; c < 77; ++c) EXPECT_EQ(dweight[c], fresh[dx.size() + c]);
  });
}

TEST(RmsNorm, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      const Inputs in(301, 579);
      Floats all = in.Backward();
      Append(all, in.y);
      Append(all, in.rstd);
      return all;
    });
  });
}

}  // namespace
}  // namespace haversack
