#include "kernels/rope.h"

#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

struct Tables {
  Tables(int64_t positions, int64_t half) {
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) *
                             std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  Floats cos, sin;
};

struct Shape {
  int64_t rows, heads, head_dim, stride;
};
constexpr Shape kShapes[] = {{1, 1, 2, 2}, {3, 2, 6, 12}, {4, 3, 64, 200}, {2, 3, 34, 102}};

// x * cos + rotate_half(x) * sin with cos and sin repeated over both halves, as transformers writes
// it.
Doubles Reference(const Floats& x, const Shape& shape, const std::vector<int32_t>& positions,
                  const Tables& tables) {
  const auto [rows, heads, head_dim, stride] = shape;
  const int64_t half = head_dim / 2;
  Doubles y = ToDouble(x);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < heads * head_dim; ++i) {
      const int64_t base = r * stride + i / head_dim * head_dim, e = i % head_dim;
      const double rotated = e < half ? -x[base + e + half] : x[base + e - half];
      const int64_t table = positions[r] * half + e % half;
      y[base + e] = double{x[base + e]} * tables.cos[table] + rotated * tables.sin[table];
    }
  }
  return y;
}

TEST(Rope, ForwardMatchesDoubleReferenceAndLeavesTheRestOfTheRow) {
  ForEachTarget([] {
    for (const Shape& shape : kShapes) {
      const Tables tables(50, shape.head_dim / 2);
      const auto positions = RandomIds(shape.rows, 5, 50);
      const Floats x = RandomFloats(shape.rows * shape.stride, 1);
      Floats y = x;
      RopeForward(y.data(), shape.stride, shape.rows, shape.heads, shape.head_dim, positions.data(),
                  tables.cos.data(), tables.sin.data());
      // Two products and a sum.
      ExpectClose(y, Reference(x, shape, positions, tables), 2, MaxAbs(ToDouble(x)));
      for (int64_t r = 0; r < shape.rows; ++r) {
        for (int64_t i = shape.heads * shape.head_dim; i < shape.stride; ++i) {
          EXPECT_EQ(y[r * shape.stride + i], x[r * shape.stride + i]);
        }
      }
    }
  });
}

TEST(Rope, BackwardIsTheTranspose) {
  ForEachTarget([] {
    for (const Shape& shape : kShapes) {
      const Tables tables(50, shape.head_dim / 2);
      const auto positions = RandomIds(shape.rows, 5, 50);
      const Floats x = RandomFloats(shape.rows * shape.stride, 1);
      Floats y = x;
      RopeForward(y.data(), shape.stride, shape.rows, shape.heads, shape.head_dim, positions.data(),
                  tables.cos.data(), tables.sin.data());
      RopeBackward(y.data(), shape.stride, shape.rows, shape.heads, shape.head_dim,
                   positions.data(), tables.cos.data(), tables.sin.data());
      // Of a rotation the transpose is the inverse; cos^2 + sin^2 of the rounded tables is 1
      // within 4.
      ExpectClose(y, ToDouble(x), 8, MaxAbs(ToDouble(x)));
    }
  });
}

TEST(Rope, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    const Tables tables(50, 32);
    const auto positions = RandomIds(200, 5, 50);
    ExpectThreadCountIndependent([&] {
      Floats x = RandomFloats(200 * 600, 1);
      RopeForward(x.data(), 600, 200, 9, 64, positions.data(), tables.cos.data(),
                  tables.sin.data());
      return x;
    });
  });
}

}  // namespace
}  // namespace haversack
