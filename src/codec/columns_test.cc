#include "codec/columns.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "codec/cases_test_util.h"

namespace haversack {
namespace {

TEST(Columns, LargestAreByMaximumThenByNumber) {
  ForEachTarget([] {
    // [3, 5] with stride 6.
    const Floats x = {1, -9, 2, 0, 3, 99, 1, 0, -7, 7, 3, 99, 2, 8, 0, 1, 3, 99};
    EXPECT_EQ(ColumnMaxima(x.data(), 6, 3, 5), (Floats{2, 9, 7, 7, 3}));
    EXPECT_EQ(LargestColumns(x.data(), 6, 3, 5, 2), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(LargestColumns(x.data(), 6, 3, 5, 3), (std::vector<int32_t>{1, 2, 3}));
    EXPECT_TRUE(LargestColumns(x.data(), 6, 3, 5, 0).empty());
    EXPECT_EQ(LargestColumns(x.data(), 6, 3, 5, 5), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  });
}

TEST(Columns, NanIsTheLargest) {
  const Floats x = {1, NAN, INFINITY, 5, 2, 100};
  EXPECT_EQ(LargestColumns(x.data(), 3, 2, 3, 1), (std::vector<int32_t>{1}));
  EXPECT_EQ(LargestColumns(x.data(), 3, 2, 3, 2), (std::vector<int32_t>{1, 2}));
}

}  // namespace
}  // namespace haversack
