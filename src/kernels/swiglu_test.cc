#include "kernels/swiglu.h"

#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

struct Shape {
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {1, 7}, {3, 16}, {2, 65}, {5, 77}};

Doubles Reference(const Doubles& gate_up, int64_t rows, int64_t cols) {
  Doubles y;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const double gate = gate_up[r * 2 * cols + c], up = gate_up[r * 2 * cols + cols + c];
      y.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  }
  return y;
}

TEST(Swiglu, ForwardMatchesDoubleReference) {
  ForEachTarget([] {
    for (const auto [rows, cols] : kShapes) {
      const Floats gate_up = RandomFloats(rows * 2 * cols, 1, 5);
      Floats y(rows * cols);
      SwigluForward(gate_up.data(), rows, cols, y.data());
      // Sigmoid within 4 ulp = 8 roundings, two products.
      ExpectClose(y, Reference(ToDouble(gate_up), rows, cols), 10, 0);
    }
  });
}

TEST(Swiglu, BackwardMatchesNumericGradientAlsoInPlace) {
  ForEachTarget([] {
    for (const auto [rows, cols] : kShapes) {
      Floats gate_up = RandomFloats(rows * 2 * cols, 1, 5);
      const Floats dy = RandomFloats(rows * cols, 2);
      const Doubles expected =
          NumericGradient(ToDouble(gate_up), [&, rows = rows, cols = cols](const Doubles& v) {
            return Dot(dy, Reference(v, rows, cols));
          });
      Floats d_gate_up(gate_up.size());
      SwigluBackward(dy.data(), gate_up.data(), rows, cols, d_gate_up.data());
      // |gate (1 - s)| <= |gate| is the term that cancels.
      const double magnitude =
          MaxAbs(ToDouble(dy)) * MaxAbs(ToDouble(gate_up)) * MaxAbs(ToDouble(gate_up));
      ExpectClose(d_gate_up, expected, 12, magnitude);
      SwigluBackward(dy.data(), gate_up.data(), rows, cols, gate_up.data());
      ExpectSameBits(gate_up, d_gate_up);
    }
  });
}

TEST(Swiglu, SaturatesWithoutNan) {
  ForEachTarget([] {
    const Floats gate_up = {1e4f, -1e4f, 100, -100, 0, 2, 3, 4, 5, 6};
    const Floats dy(5, 1);
    Floats y(5), d(10);
    SwigluForward(gate_up.data(), 1, 5, y.data());
    SwigluBackward(dy.data(), gate_up.data(), 1, 5, d.data());
    EXPECT_EQ(y, (Floats{2e4f, 0, 400, 0, 0}));
    EXPECT_EQ(d, (Floats{2, 0, 4, 0, 3, 1e4f, 0, 100, 0, 0}));
  });
}

TEST(Swiglu, NanStaysNan) {
  ForEachTarget([] {
    const Floats gate_up = {NAN, 1, 1, NAN};
    Floats y(2);
    SwigluForward(gate_up.data(), 1, 2, y.data());
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  });
}

TEST(Swiglu, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      const Floats gate_up = RandomFloats(101 * 2 * 579, 1, 5), dy = RandomFloats(101 * 579, 2);
      Floats y(dy.size()), d(gate_up.size());
      SwigluForward(gate_up.data(), 101, 579, y.data());
      SwigluBackward(dy.data(), gate_up.data(), 101, 579, d.data());
      Append(y, d);
      return y;
    });
  });
}

}  // namespace
}  // namespace haversack
