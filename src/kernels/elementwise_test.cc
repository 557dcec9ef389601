#include "kernels/elementwise.h"

#include "kernels/row_blocks.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

constexpr int64_t kCounts[] = {0, 1, 15, 16, 1000, 40001};

TEST(Elementwise, AddScaleAndFillMatchScalarLoops) {
  ForEachTarget([] {
    for (const int64_t count : kCounts) {
      const Floats a = RandomFloats(count, 1), b = RandomFloats(count, 2);
      Floats sum, scaled;
      for (int64_t i = 0; i < count; ++i) {
        sum.push_back(a[i] + b[i]);
        scaled.push_back(a[i] * 0.3f);
      }
      Floats out(count), into = a, x = a;
      Add(a.data(), b.data(), count, out.data());
      ExpectSameBits(out, sum);
      AddInto(into.data(), b.data(), count);
      ExpectSameBits(into, sum);
      Scale(x.data(), count, 0.3f);
      ExpectSameBits(x, scaled);
      for (const float value : {2.5f, 0.0f}) {
        Fill(x.data(), count, value);
        EXPECT_EQ(x, Floats(count, value));
      }
    }
  });
}

TEST(Elementwise, RowsAreCopiedAndAddedBetweenStrides) {
  ForEachTarget([] {
    const Floats src = RandomFloats(5 * 30, 1), start = RandomFloats(5 * 20, 2);
    Floats copied = start, added = start;
    CopyRows(src.data(), 30, 5, 17, copied.data(), 20);
    AddRows(src.data(), 30, 5, 17, added.data(), 20);
    for (int64_t i = 0; i < 5 * 20; ++i) {
      const float value = src[i / 20 * 30 + i % 20];
      EXPECT_EQ(copied[i], i % 20 < 17 ? value : start[i]);
      EXPECT_EQ(added[i], i % 20 < 17 ? start[i] + value : start[i]);
    }
  });
}

TEST(Bias, ForwardAddsTheBiasToEachRow) {
  ForEachTarget([] {
    const Floats x = RandomFloats(5 * 77, 1), bias = RandomFloats(77, 2);
    Floats y = x;
    AddBias(y.data(), 5, 77, bias.data());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], x[i] + bias[i % 77]);
  });
}

TEST(Bias, BackwardSumsRowsOverwritingOrAccumulating) {
  ForEachTarget([] {
    for (const int64_t rows : {1, 8, 9, 300, 1000}) {
      for (const int64_t cols : {1, 16, 77}) {
        const int64_t stride = cols + 3;
        const Floats dy = RandomFloats(rows * stride, 1);
        Doubles expected(cols);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) expected[c] += dy[r * stride + c];
        }
        Floats dbias(cols, 1.0f), accumulated(cols, 1.0f);
        const auto scratch = NanScratch(BiasBackwardScratch(rows, cols));
        BiasBackward(dy.data(), rows, cols, stride, dbias.data(), false, scratch.get());
        // Additions in a chain: the rows of a block, then the blocks; partial sums stay below this.
        const RowBlocks blocks(rows);
        ExpectClose(dbias, expected, static_cast<double>(blocks.size + blocks.count),
                    4 * std::sqrt(rows));
        BiasBackward(dy.data(), rows, cols, stride, accumulated.data(), true, scratch.get());
        for (int64_t c = 0; c < cols; ++c) EXPECT_EQ(accumulated[c], 1.0f + dbias[c]);
      }
    }
  });
}

TEST(Bias, NoRowsGiveZeroOrLeaveTheSum) {
  Floats dbias(3, 2.0f);
  const auto scratch = NanScratch(64);
  BiasBackward(nullptr, 0, 3, 3, dbias.data(), true, scratch.get());
  EXPECT_EQ(dbias, Floats(3, 2.0f));
  BiasBackward(nullptr, 0, 3, 3, dbias.data(), false, scratch.get());
  EXPECT_EQ(dbias, Floats(3, 0.0f));
}

TEST(RowBlocks, CoverEachRowOnceInAtMost32Blocks) {
  for (int64_t rows = 0; rows < 3000; ++rows) {
    const RowBlocks blocks(rows);
    ASSERT_LE(blocks.count, 32);
    int64_t next = 0;
    for (int64_t block = 0; block < blocks.count; ++block) {
      ASSERT_EQ(blocks.Begin(block), next);
      ASSERT_GT(blocks.End(block), next);
      next = blocks.End(block);
    }
    ASSERT_EQ(next, rows);
  }
}

TEST(Elementwise, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      const Floats a = RandomFloats(301 * 579, 1), b = RandomFloats(301 * 579, 2);
      Floats out(a.size()), dbias(579);
      Add(a.data(), b.data(), 301 * 579, out.data());
      AddBias(out.data(), 301, 579, b.data());
      const auto scratch = NanScratch(BiasBackwardScratch(301, 579));
      BiasBackward(out.data(), 301, 579, 579, dbias.data(), false, scratch.get());
      Append(out, dbias);
      return out;
    });
  });
}

}  // namespace
}  // namespace haversack
