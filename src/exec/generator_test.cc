#include "exec/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "models/config.h"

namespace haversack {
namespace {

constexpr int64_t kPositions = 16;
constexpr int64_t kVocab = 40;

ModelConfig ConfigOf(const std::string& family) {
  nlohmann::json json = {{"model_type", family}, {"vocab_size", kVocab}};
  if (family == "gpt2") {
    json.update({{"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", kPositions}});
  } else {
    json.update({{"hidden_size", 32},
                 {"intermediate_size", 48},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 12},
                 {"max_position_embeddings", kPositions}});
  }
  return ParseModelConfig(json, "config.json");
}

class CachedLogits : public testing::TestWithParam<std::string> {};

// The same tokens in one call, one by one, and in uneven pieces. Sums run in another order where
// the number of rows differs: the logits are of order 10, and a few hundred roundings of f32 stay
// below 1e-4.
TEST_P(CachedLogits, EqualTheUncachedOnesAtEveryLength) {
  const ModelConfig config = ConfigOf(GetParam());
  const Graph graph = BuildGraph(config, {.positions = kPositions, .loss_chunk = 1});
  const ParamLayout layout(graph);
  std::vector<float> weights(layout.total);
  const RandomStream random({.seed = 1});
  for (int64_t i = 0; i < layout.total; ++i) weights[i] = 0.3f * random.Normal(i);
  const ModelState state = {.weights = weights.data()};
  std::vector<int32_t> ids(kPositions);
  for (int64_t i = 0; i < kPositions; ++i) ids[i] = static_cast<int32_t>(random.Bits(i) % kVocab);

  Generator one_by_one(graph, layout, state, kPositions);
  for (int64_t length = 1; length <= kPositions; ++length) {
    const std::span<const int32_t> prefix = std::span(ids).first(length);
    Generator whole(graph, layout, state, length);
    const std::span<const float> expected = whole.Feed(prefix);
    Generator halves(graph, layout, state, kPositions);
    if (length > 1) halves.Feed(prefix.first(length / 2));
    const std::span<const float> pieces = halves.Feed(prefix.subspan(length / 2));
    const std::span<const float> cached = one_by_one.Feed({&ids[length - 1], 1});
    EXPECT_EQ(one_by_one.length(), length);
    ASSERT_EQ(expected.size(), kVocab);
    for (int64_t v = 0; v < kVocab; ++v) {
      EXPECT_NEAR(cached[v], expected[v], 1e-4) << "length " << length;
      EXPECT_NEAR(pieces[v], expected[v], 1e-4) << "length " << length;
    }
    // The logits say something: they are neither all equal nor broken.
    const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
    EXPECT_GT(*high - *low, 0.1f);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CachedLogits,
                         testing::Values("llama", "mistral", "qwen2", "qwen3", "gpt2"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace haversack
