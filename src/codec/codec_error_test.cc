#include "codec/codec_error.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codec/cases_test_util.h"

namespace haversack {
namespace {

TEST(CodecError, IsThatOfTheWholeRoundTrip) {
  ForEachCase([](const EncodedShape& shape, const Floats& x) {
    const Floats y = RoundTrip(shape, x);
    double error = 0, norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
      norm += double{x[i]} * x[i];
    }
    const SquaredError measured = MeasureError(shape, x.data(), shape.cols, kKey);
    // Sums of cols positive terms in f32, and the rounding of each difference and square.
    const double tolerance = kEps * (static_cast<double>(shape.cols) + 6);
    EXPECT_NEAR(measured.error, error, tolerance * error);
    EXPECT_NEAR(measured.norm, norm, tolerance * norm);
    EXPECT_NEAR(measured.Relative(), error / norm, 3 * tolerance * error / norm);
  });
}

TEST(CodecError, ZerosHaveNoneAndNanShows) {
  const EncodedShape shape{Codec("int4"), 3, 70, {}};
  Floats x(210, 0.0f);
  EXPECT_EQ(MeasureError(shape, x.data(), 70, kKey).Relative(), 0);
  x[100] = NAN;
  EXPECT_TRUE(std::isnan(MeasureError(shape, x.data(), 70, kKey).Relative()));
}

}  // namespace
}  // namespace haversack
