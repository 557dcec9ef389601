#include "models/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace haversack {
namespace {

nlohmann::json Llama() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 320},
          {"max_position_embeddings", 64}};
}

nlohmann::json Gpt2() {
  return {{"model_type", "gpt2"}, {"n_embd", 64},      {"n_layer", 2},
          {"n_head", 4},          {"vocab_size", 320}, {"n_positions", 64}};
}

nlohmann::json With(nlohmann::json json, const nlohmann::json& changes) {
  json.update(changes);
  return json;
}

ModelConfig Parse(const nlohmann::json& json) { return ParseModelConfig(json, "DIR/config.json"); }

void ExpectRefused(const nlohmann::json& json, std::initializer_list<std::string> words) {
  try {
    Parse(json);
    ADD_FAILURE() << "accepted: " << json.dump();
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_EQ(message.find("DIR/config.json"), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is not in: " << message;
    }
  }
}

TEST(Config, ReadsTheSizesOfALlama) {
  const ModelConfig config = Parse(Llama());
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.ffn, 128);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.q_heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab, 320);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_TRUE(config.warnings.empty());
}

TEST(Config, NullCountsAsMissing) {
  const ModelConfig config = Parse(With(Llama(), {{"head_dim", nullptr},
                                                  {"num_key_value_heads", nullptr},
                                                  {"architectures", nullptr},
                                                  {"rope_scaling", nullptr},
                                                  {"rope_parameters", nullptr},
                                                  {"rope_theta", nullptr},
                                                  {"eos_token_id", nullptr},
                                                  {"tie_word_embeddings", nullptr}}));
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_TRUE(config.eos_ids.empty());
  EXPECT_FALSE(config.tied_embeddings);
}

// What transformers 5.24's configuration classes say where the field is missing altogether.
TEST(Config, AMissingFieldHasTheDefaultOfItsFamily) {
  nlohmann::json json = With(Llama(), {{"num_attention_heads", 32}, {"architectures", nullptr}});
  json.erase("num_key_value_heads");
  EXPECT_EQ(Parse(json).kv_heads, 32);
  EXPECT_EQ(Parse(With(json, {{"model_type", "mistral"}})).kv_heads, 8);
  EXPECT_EQ(Parse(With(json, {{"model_type", "mistral"}})).sliding_window, 4096);
  EXPECT_EQ(Parse(With(json, {{"model_type", "qwen2"}})).kv_heads, 32);
  EXPECT_EQ(Parse(With(json, {{"model_type", "qwen3"}})).head_dim, 128);
  // Qwen 3's width of a head owes nothing to hidden_size.
  EXPECT_EQ(Parse(With(json, {{"model_type", "qwen3"}, {"hidden_size", 100}})).head_dim, 128);
  EXPECT_TRUE(Parse(Gpt2()).tied_embeddings);
  EXPECT_EQ(Parse(Gpt2()).ffn, 256);
}

TEST(Config, FamiliesAreFoundByEitherName) {
  for (const ModelFamily& family : ModelFamilies()) {
    const bool gpt2 = family.model_type == "gpt2";
    const nlohmann::json json = gpt2 ? Gpt2() : Llama();
    const auto found = [&](const nlohmann::json& type, const nlohmann::json& architectures) {
      const ModelConfig config =
          Parse(With(json, {{"model_type", type}, {"architectures", architectures}}));
      EXPECT_EQ(config.json.at("model_type"), family.model_type);
      EXPECT_EQ(config.json.at("architectures"), nlohmann::json::array({family.architecture}));
      return config.model_type == family.model_type;
    };
    EXPECT_TRUE(found(family.model_type, nullptr));
    EXPECT_TRUE(found(family.model_type, nlohmann::json::array()));
    EXPECT_TRUE(found(nullptr, nlohmann::json::array({family.architecture})));
    EXPECT_TRUE(found(family.model_type, nlohmann::json::array({family.base_architecture})));
  }
}

TEST(Config, WhatIsNotSupportedIsRefusedWithTheListOfWhatIs) {
  ExpectRefused(With(Llama(), {{"model_type", "mamba"}, {"architectures", {"MambaForCausalLM"}}}),
                {"MambaForCausalLM", "mamba", "LlamaForCausalLM", "MistralForCausalLM",
                 "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GPT2LMHeadModel"});
  ExpectRefused(With(Llama(), {{"architectures", {"MistralForCausalLM"}}}), {"MistralForCausalLM"});
  ExpectRefused(With(Llama(), {{"architectures", "LlamaForCausalLM"}}), {"'architectures'"});
  ExpectRefused(With(Llama(), {{"hidden_act", "relu"}}), {"hidden_act", "'relu'", "silu"});
  ExpectRefused(With(Gpt2(), {{"activation_function", "relu"}}),
                {"activation_function", "'relu'", "gelu, gelu_new, gelu_pytorch_tanh"});
  ExpectRefused(With(Llama(), {{"rope_scaling", {{"type", "yarn"}, {"factor", 2}}}}),
                {"'yarn'", "default, linear, llama3"});
  ExpectRefused(With(Llama(), {{"quantization_config", {{"quant_method", "awq"}}}}),
                {"quantization_config", "awq"});
  ExpectRefused(With(Gpt2(), {{"scale_attn_by_inverse_layer_idx", true}}),
                {"scale_attn_by_inverse_layer_idx"});
  ExpectRefused(With(Gpt2(), {{"scale_attn_weights", false}}), {"scale_attn_weights"});
}

TEST(Config, FieldsThatMakeNoModelAreRefusedByName) {
  ExpectRefused(With(Llama(), {{"vocab_size", 0}}), {"'vocab_size'", "0"});
  ExpectRefused(With(Llama(), {{"vocab_size", 1e12}}), {"'vocab_size'", "1000000000000"});
  ExpectRefused(With(Llama(), {{"num_hidden_layers", 1000000}}), {"'num_hidden_layers'"});
  ExpectRefused(With(Gpt2(), {{"n_positions", int64_t{1} << 40}}), {"'n_positions'"});
  ExpectRefused(With(Llama(), {{"vocab_size", 3.5}}), {"'vocab_size'", "3.5"});
  ExpectRefused(With(Llama(), {{"hidden_size", nullptr}}), {"'hidden_size'", "missing"});
  ExpectRefused(With(Llama(), {{"num_attention_heads", 5}}), {"num_attention_heads", "5"});
  ExpectRefused(With(Llama(), {{"head_dim", 15}}), {"head_dim", "15"});
  ExpectRefused(With(Llama(), {{"tie_word_embeddings", "yes"}}), {"tie_word_embeddings"});
  ExpectRefused(With(Gpt2(), {{"n_head", 5}}), {"n_embd", "n_head"});
}

TEST(Config, RopeIsReadFromEveryPlaceItIsWrittenIn) {
  const RopeScaling linear = LinearRopeScaling{.factor = 2};
  const auto expect = [](const nlohmann::json& changes, double theta, const RopeScaling& scaling) {
    const ModelConfig config = Parse(With(Llama(), changes));
    EXPECT_EQ(config.rope_theta, theta) << changes.dump();
    EXPECT_EQ(config.rope_scaling, scaling) << changes.dump();
  };
  expect({{"rope_theta", 5e5}}, 5e5, {});
  expect({{"rope_theta", 500000}, {"rope_scaling", {{"type", "default"}}}}, 5e5, {});
  expect({{"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}}}}, 5e5, {});
  expect({{"rope_theta", 5e5}, {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}, 5e5, linear);
  expect({{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"rope_theta", 5e5}}}}, 5e5, linear);
  expect({{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 5e5}}},
          {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
          {"rope_theta", 500000}},
         5e5, linear);
  // rope_type is the newer name of type.
  expect({{"rope_scaling", {{"rope_type", "linear"}, {"type", "default"}, {"factor", 2}}}}, 1e4,
         linear);
}

TEST(Config, RopeThatContradictsItselfIsRefused) {
  ExpectRefused(With(Llama(), {{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 5e5}}}}),
                {"rope_theta"});
  ExpectRefused(With(Llama(), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
                               {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}),
                {"rope_parameters", "rope_scaling"});
  ExpectRefused(With(Llama(), {{"rope_theta", -1}}), {"rope_theta"});
  ExpectRefused(With(Llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", -2}}}}),
                {"'factor'", "-2"});
}

TEST(Config, TheOriginalLengthOfLlama3ScalingIsFoundOrReplacedWithAWarning) {
  const nlohmann::json llama3 = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
  const auto original = [](const ModelConfig& config) {
    return std::get<Llama3RopeScaling>(config.rope_scaling).original_max_positions;
  };
  const ModelConfig inside = Parse(
      With(Llama(), {{"rope_scaling", With(llama3, {{"original_max_position_embeddings", 32}})}}));
  EXPECT_EQ(original(inside), 32);
  EXPECT_TRUE(inside.warnings.empty());
  EXPECT_EQ(original(Parse(With(
                Llama(), {{"rope_scaling", llama3}, {"original_max_position_embeddings", 16}}))),
            16);
  const ModelConfig none = Parse(With(Llama(), {{"rope_scaling", llama3}}));
  EXPECT_EQ(original(none), 64);
  ASSERT_EQ(none.warnings.size(), 1u);
  EXPECT_NE(none.warnings[0].find("original_max_position_embeddings"), std::string::npos);
}

TEST(Config, EndTokensAreANumberAListOrNothing) {
  const auto ids = [](const nlohmann::json& value) {
    return Parse(With(Llama(), {{"eos_token_id", value}})).eos_ids;
  };
  EXPECT_EQ(ids(256), std::vector<int32_t>({256}));
  EXPECT_EQ(ids({256, 258}), std::vector<int32_t>({256, 258}));
  EXPECT_TRUE(ids(nlohmann::json::array()).empty());
  EXPECT_TRUE(ids(nullptr).empty());
  for (const nlohmann::json& wrong : {nlohmann::json("256"), nlohmann::json(1.5),
                                      nlohmann::json(int64_t{1} << 32), nlohmann::json(true)}) {
    ExpectRefused(With(Llama(), {{"eos_token_id", wrong}}), {"eos_token_id", wrong.dump()});
    ExpectRefused(With(Llama(), {{"bos_token_id", wrong}}), {"bos_token_id", wrong.dump()});
  }
}

TEST(Config, AWindowMattersOnlyWhereALayerHasOne) {
  const auto window = [](nlohmann::json changes) {
    changes.update({{"model_type", "qwen2"}, {"architectures", nullptr}});
    return Parse(With(Llama(), changes)).sliding_window;
  };
  EXPECT_EQ(window({{"sliding_window", 16}}), std::nullopt);
  const nlohmann::json used = {{"use_sliding_window", true}, {"sliding_window", 16}};
  EXPECT_EQ(window(used), std::nullopt);  // max_window_layers is 28 by default
  EXPECT_EQ(window(With(used, {{"max_window_layers", 2}})), std::nullopt);
  EXPECT_EQ(window(With(used, {{"max_window_layers", 1}})), 16);
  EXPECT_EQ(window(With(used, {{"max_window_layers", 0}, {"sliding_window", nullptr}})),
            std::nullopt);
  EXPECT_EQ(window(With(used, {{"layer_types", {"full_attention", "full_attention"}},
                               {"max_window_layers", 0}})),
            std::nullopt);
  EXPECT_EQ(window(With(used, {{"layer_types", {"sliding_attention", "full_attention"}}})), 16);
  ExpectRefused(With(With(Llama(), used), {{"model_type", "qwen2"},
                                           {"architectures", nullptr},
                                           {"layer_types", {"linear_attention"}}}),
                {"layer_types", "linear_attention", "sliding_attention"});
}

TEST(Config, SequencesPastWhatTheModelHasAreRefusedOrWarnedOf) {
  EXPECT_TRUE(CheckSequenceLength(Parse(Llama()), 64).empty());
  EXPECT_EQ(CheckSequenceLength(Parse(Llama()), 65).size(), 1u);
  EXPECT_TRUE(CheckSequenceLength(Parse(Gpt2()), 64).empty());
  EXPECT_THROW(CheckSequenceLength(Parse(Gpt2()), 65), UserError);
  const ModelConfig mistral = Parse(With(
      Llama(), {{"model_type", "mistral"}, {"architectures", nullptr}, {"sliding_window", 16}}));
  EXPECT_TRUE(CheckSequenceLength(mistral, 16).empty());
  EXPECT_THROW(CheckSequenceLength(mistral, 17), UserError);
}

// Every tensor once, as a checkpoint of the family names it.
TEST(Config, GraphsNameTheTensorsOfTheirFamily) {
  const auto tensors = [](const nlohmann::json& json) {
    const Graph graph = BuildGraph(Parse(json), {.positions = 8});
    std::set<std::string> names;
    for (const Param& param : graph.params) {
      int64_t rows = 0;
      for (const TensorSource& source : param.sources) {
        EXPECT_TRUE(names.insert(source.name).second) << source.name;
        EXPECT_EQ(source.row_begin, rows) << source.name;
        rows += source.rows;
      }
      EXPECT_EQ(rows, param.rows) << param.name;
    }
    return names;
  };
  const auto of = [](const char* type) {
    return With(Llama(), {{"model_type", type}, {"architectures", nullptr}});
  };
  // Embedding, head, final norm; nine a layer.
  EXPECT_EQ(tensors(Llama()).size(), 3u + 2 * 9);
  EXPECT_EQ(tensors(With(Llama(), {{"tie_word_embeddings", true}})).size(), 2u + 2 * 9);
  EXPECT_EQ(tensors(With(Llama(), {{"attention_bias", true}, {"mlp_bias", true}})).size(),
            3u + 2 * 16);
  EXPECT_EQ(tensors(of("mistral")), tensors(Llama()));
  EXPECT_EQ(tensors(of("qwen2")).size(), 3u + 2 * 12);
  EXPECT_TRUE(tensors(of("qwen2")).contains("model.layers.1.self_attn.k_proj.bias"));
  EXPECT_EQ(tensors(of("qwen3")).size(), 3u + 2 * 11);
  EXPECT_TRUE(tensors(of("qwen3")).contains("model.layers.1.self_attn.q_norm.weight"));
  EXPECT_EQ(tensors(Gpt2()).size(), 4u + 2 * 12);
  EXPECT_TRUE(tensors(Gpt2()).contains("transformer.h.1.attn.c_attn.bias"));
}

}  // namespace
}  // namespace haversack
