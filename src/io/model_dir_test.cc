#include "io/model_dir.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/threads.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

nlohmann::json ConfigJson(const std::string& family) {
  nlohmann::json json = {{"model_type", family}, {"vocab_size", 512}, {"initializer_range", 0.05}};
  if (family == "gpt2") {
    json.update({{"n_embd", 64}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 64}});
  } else {
    json.update({{"hidden_size", 64},
                 {"intermediate_size", 128},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16}});
  }
  return json;
}

class ModelDir : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("model_dir_test_" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_ / "source");
  }
  void TearDown() override {
    SetNumThreads(1);
    fs::remove_all(root_);
  }

  struct Built {
    explicit Built(const nlohmann::json& json)
        : config(ParseModelConfig(json, "config.json")),
          graph(BuildGraph(config, {.positions = 8})),
          layout(graph) {}
    std::vector<float> Init(uint64_t seed) const {
      std::vector<float> weights(layout.total, 0);
      InitWeights(graph, layout, seed, weights.data());
      return weights;
    }
    ModelConfig config;
    Graph graph;
    ParamLayout layout;
  };

  std::string Export(const Built& built, const std::vector<float>& weights,
                     const std::string& dtype = "F32") {
    const std::string out = (root_ / "out").string();
    ExportModel(built.graph, built.layout, built.config, weights.data(),
                (root_ / "source").string(), dtype, out);
    return out;
  }

  fs::path root_;
};

TEST_F(ModelDir, RandomWeightsHaveTheConfiguredSpread) {
  for (const char* family : {"llama", "qwen3", "gpt2"}) {
    const Built built(ConfigJson(family));
    const std::vector<float> weights = built.Init(1);
    for (size_t p = 0; p < built.graph.params.size(); ++p) {
      const Param& param = built.graph.params[p];
      const float* w = weights.data() + built.layout.offset[p];
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < param.count(); ++i) {
        sum += w[i];
        squares += double{w[i]} * w[i];
      }
      const auto n = static_cast<double>(param.count());
      if (param.init != ParamInit::kNormal) {
        const double expected = param.init == ParamInit::kOnes ? 1 : 0;
        EXPECT_EQ(sum, expected * n) << param.name;
        EXPECT_EQ(squares, expected * n) << param.name;
        continue;
      }
      // GPT-2's projections into the residual stream: divided by sqrt(2 layers) = 2.
      const bool residual = std::string(family) == "gpt2" &&
                            (param.name.ends_with("attn_proj") || param.name.ends_with("down"));
      const double std = residual ? 0.025 : 0.05;
      // Five standard errors of a mean and of a standard deviation.
      EXPECT_NEAR(sum / n, 0, 5 * std / std::sqrt(n)) << family << " " << param.name;
      EXPECT_NEAR(std::sqrt(squares / n), std, 5 * std / std::sqrt(2 * n))
          << family << " " << param.name;
    }
  }
}

TEST_F(ModelDir, RandomWeightsDependOnTheSeedAndNotOnTheThreads) {
  const Built built(ConfigJson("llama"));
  SetNumThreads(1);
  const std::vector<float> one = built.Init(1);
  for (const int threads : {2, 3, 7}) {
    SetNumThreads(threads);
    EXPECT_EQ(built.Init(1), one) << threads << " threads";
  }
  EXPECT_NE(built.Init(2), one);
}

TEST_F(ModelDir, NoTwoTensorsGetTheSameRandomNumbers) {
  const Built built(ConfigJson("llama"));
  const std::vector<float> weights = built.Init(1);
  std::set<float> first;
  int matrices = 0;
  for (size_t p = 0; p < built.graph.params.size(); ++p) {
    if (built.graph.params[p].init != ParamInit::kNormal) continue;
    ++matrices;
    first.insert(weights[built.layout.offset[p]] / built.graph.params[p].init_std);
  }
  EXPECT_EQ(first.size(), static_cast<size_t>(matrices));
}

TEST_F(ModelDir, AnExportedModelIsReadBackBitForBit) {
  for (const char* family : {"llama", "qwen2", "qwen3", "gpt2"}) {
    for (const bool tied : {false, true}) {
      nlohmann::json json = ConfigJson(family);
      json["tie_word_embeddings"] = tied;
      const Built built(json);
      const std::vector<float> weights = built.Init(3);
      const std::string out = Export(built, weights);
      const WeightFiles files = WeightFiles::Open(out);
      EXPECT_TRUE(CheckWeights(built.graph, built.config, files).empty());
      EXPECT_NE(files.Has("lm_head.weight"), tied);
      std::vector<float> back(built.layout.total, 0);
      LoadWeights(built.graph, built.layout, files, back.data());
      EXPECT_EQ(back, weights) << family;
      const std::string path = out + "/config.json";
      EXPECT_EQ(ParseJson(ReadWholeFile(path), path).at("tie_word_embeddings"), tied);
    }
  }
}

TEST_F(ModelDir, HalfPrecisionExportRoundsEachNumberOnce) {
  const Built built(ConfigJson("llama"));
  const std::vector<float> weights = built.Init(4);
  for (const auto& [dtype, step] : {std::pair("BF16", 0x1p-8f), std::pair("F16", 0x1p-11f)}) {
    const WeightFiles files = WeightFiles::Open(Export(built, weights, dtype));
    std::vector<float> back(built.layout.total, 0);
    LoadWeights(built.graph, built.layout, files, back.data());
    for (int64_t i = 0; i < built.layout.total; ++i) {
      // Half a unit in the last place; below 2^-14 f16's step is 2^-24.
      EXPECT_LE(std::abs(back[i] - weights[i]), std::max(step * std::abs(weights[i]), 0x1p-25f));
    }
  }
}

TEST_F(ModelDir, AnExportReplacesWhateverWasThere) {
  const Built built(ConfigJson("llama"));
  fs::create_directories(root_ / "out");
  for (const char* name : {"model.safetensors.index.json", "model-00001-of-00002.safetensors"}) {
    File::Create((root_ / "out" / name).string()).WriteAt("x", 1, 0);
  }
  Export(built, built.Init(1));
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(root_ / "out")) {
    names.insert(entry.path().filename().string());
  }
  EXPECT_EQ(names, (std::set<std::string>{"config.json", "model.safetensors"}));
  for (const auto& entry : fs::directory_iterator(root_)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name == "source" || name == "out") << name;
  }
}

TEST_F(ModelDir, EveryTensorThatDoesNotFitIsNamed) {
  const Built two(ConfigJson("llama"));
  const std::string out = Export(two, two.Init(1));
  const WeightFiles files = WeightFiles::Open(out);
  nlohmann::json json = ConfigJson("llama");
  json.update({{"num_hidden_layers", 4}, {"intermediate_size", 96}});
  const Built four(json);
  try {
    CheckWeights(four.graph, four.config, files);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    const std::string message = error.what();
    for (const char* words :
         {"tensor model.layers.2.mlp.up_proj.weight is missing (and so in blocks 3)",
          "model.layers.0.mlp.down_proj.weight has shape [64, 128], config.json asks for [64, 96] "
          "(and so in blocks 1)"}) {
      EXPECT_NE(message.find(words), std::string::npos) << words << " is not in: " << message;
    }
  }
  json = ConfigJson("llama");
  json["num_hidden_layers"] = 1;
  const Built one(json);
  const std::vector<std::string> notes = CheckWeights(one.graph, one.config, files);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("model.layers.1.mlp.up_proj.weight"), std::string::npos);
}

}  // namespace
}  // namespace haversack
