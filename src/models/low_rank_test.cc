#include "models/low_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/tiny_model_test_util.h"

namespace haversack {
namespace {

Graph Build(const std::string& model_type, const LowRankOptions& low_rank) {
  return BuildGraph(TinyConfig(model_type, 2, 96),
                    {.positions = 64, .loss_chunk = 24, .low_rank = low_rank});
}

LowRankOptions Compact(double ratio) {
  return {.method = LowRankMethod::kCompact, .rank_ratio = ratio};
}

std::vector<std::string> ProjectedNames(const Graph& graph) {
  std::vector<std::string> names;
  for (const ProjectedValue& value : graph.projections) names.push_back(graph.values[value.x].name);
  return names;
}

TEST(LowRank, ProjectsWhatOnlyWeightGradientsRead) {
  // Not the attention output, which attention's own backward reads, nor the head's input.
  const std::vector<std::string> names = ProjectedNames(Build("llama", Compact(0.125)));
  EXPECT_EQ(names, (std::vector<std::string>{"blocks.0.attn_norm", "blocks.0.ffn_norm",
                                             "blocks.0.swiglu", "blocks.1.attn_norm",
                                             "blocks.1.ffn_norm", "blocks.1.swiglu"}));
  for (const char* family : {"qwen2", "qwen3", "gpt2"}) {
    EXPECT_EQ(Build(family, Compact(0.125)).projections.size(), 6u) << family;
  }
}

TEST(LowRank, OneProjectionServesPackedLayersAndShapesTheirGradients) {
  const Graph graph = Build("llama", Compact(0.25));
  int64_t projected = 0;
  for (const Param& param : graph.params) {
    if (param.projection < 0) {
      EXPECT_EQ(param.gradient_count(), param.count());
      continue;
    }
    ++projected;
    const ProjectionSpec& spec = graph.projections[param.projection].spec;
    EXPECT_EQ(spec.cols, param.cols);
    EXPECT_EQ(spec.rank, param.cols / 4);
    EXPECT_EQ(param.gradient_count(), param.rows * param.cols / 4);
  }
  // q, k, v; gate, up. 24 (96 + 32) = 96 32 is not below it: the down projection stays full.
  EXPECT_EQ(projected, 4);
}

TEST(LowRank, ALayerThatWouldNotHoldLessStaysFullUnlessARankIsAskedFor) {
  EXPECT_EQ(Build("llama", Compact(0.5)).projections.size(), 4u);
  LowRankOptions asked = {.method = LowRankMethod::kCompact, .rank = 30};
  EXPECT_EQ(Build("llama", asked).projections.size(), 6u);
  EXPECT_THROW(Build("llama", Compact(1)), UserError);
}

TEST(LowRank, ParametersStayWhatTheyWere) {
  const Graph full = Build("llama", {}), low = Build("llama", Compact(0.25));
  ASSERT_EQ(full.params.size(), low.params.size());
  for (size_t p = 0; p < full.params.size(); ++p) {
    EXPECT_EQ(full.params[p].name, low.params[p].name);
    EXPECT_EQ(full.params[p].count(), low.params[p].count());
    EXPECT_EQ(full.params[p].sources.size(), low.params[p].sources.size());
  }
}

TEST(LowRank, ARankAboveADimensionIsRefusedWithBoth) {
  LowRankOptions options = {.method = LowRankMethod::kCompact, .rank = 33};
  try {
    Build("llama", options);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("--rank 33"), std::string::npos) << text;
    EXPECT_NE(text.find("32 columns of blocks.0.attn_norm"), std::string::npos) << text;
  }
  options = {.method = LowRankMethod::kPrac, .rank = 32};
  EXPECT_THROW(Build("llama", options), UserError);
}

TEST(LowRank, PracTakesHalfPrincipalDirections) {
  const Graph graph = Build("llama", {.method = LowRankMethod::kPrac});
  const ProjectionSpec& spec = graph.projections[0].spec;
  EXPECT_EQ(spec.principal, 10);  // round(0.3 32)
  EXPECT_EQ(spec.rank, 20);
  EXPECT_TRUE(spec.full_moments);
  EXPECT_FALSE(
      Build("llama", {.method = LowRankMethod::kPracLowRank}).projections[0].spec.full_moments);
}

}  // namespace
}  // namespace haversack
