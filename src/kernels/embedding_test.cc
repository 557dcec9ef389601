#include "kernels/embedding.h"

#include "base/error.h"
#include "kernels/targets_test_util.h"

namespace haversack {
namespace {

struct Shape {
  int64_t rows, cols, vocab;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {5, 7, 3}, {9, 16, 4}, {6, 77, 50}};

TEST(Embedding, ForwardPicksRows) {
  ForEachTarget([] {
    for (const auto [rows, cols, vocab] : kShapes) {
      const Floats table = RandomFloats(vocab * cols, 1),
                   positions_table = RandomFloats(9 * cols, 2);
      const auto ids = RandomIds(rows, 3, static_cast<uint32_t>(vocab));
      const auto positions = RandomIds(rows, 4, 9);
      Floats y(rows * cols), sum(rows * cols);
      EmbeddingForward(table.data(), vocab, cols, ids.data(), rows, y.data());
      EmbeddingForward(table.data(), vocab, cols, ids.data(), positions_table.data(), 9,
                       positions.data(), rows, sum.data());
      for (int64_t i = 0; i < rows * cols; ++i) {
        const float value = table[ids[i / cols] * cols + i % cols];
        EXPECT_EQ(y[i], value);
        EXPECT_EQ(sum[i], value + positions_table[positions[i / cols] * cols + i % cols]);
      }
    }
  });
}

TEST(Embedding, BackwardAddsDuplicatesInRowOrder) {
  ForEachTarget([] {
    for (const auto [rows, cols, vocab] : kShapes) {
      const Floats dy = RandomFloats(rows * cols, 1);
      const auto ids = RandomIds(rows, 3, static_cast<uint32_t>(vocab));
      Floats dtable = RandomFloats(vocab * cols, 2);
      Floats expected = dtable;
      for (int64_t i = 0; i < rows * cols; ++i) expected[ids[i / cols] * cols + i % cols] += dy[i];
      EmbeddingBackward(dy.data(), ids.data(), rows, cols, dtable.data(), vocab);
      ExpectSameBits(dtable, expected);
    }
  });
}

TEST(Embedding, IdOutsideTheTableIsABug) {
  const Floats table(8), dy(4);
  Floats y(4), dtable(8);
  for (const int32_t id : {-1, 2}) {
    EXPECT_THROW(EmbeddingForward(table.data(), 2, 4, &id, 1, y.data()), InternalError);
    EXPECT_THROW(EmbeddingBackward(dy.data(), &id, 1, 4, dtable.data(), 2), InternalError);
  }
}

TEST(Embedding, ResultIsIndependentOfThreadCount) {
  ForEachTarget([] {
    ExpectThreadCountIndependent([] {
      const Floats table = RandomFloats(11 * 579, 1), dy = RandomFloats(501 * 579, 2);
      const auto ids = RandomIds(501, 3, 11);
      Floats y(dy.size()), dtable(table.size());
      EmbeddingForward(table.data(), 11, 579, ids.data(), 501, y.data());
      EmbeddingBackward(dy.data(), ids.data(), 501, 579, dtable.data(), 11);
      Append(y, dtable);
      return y;
    });
  });
}

}  // namespace
}  // namespace haversack
