// For tests of graphs: models so small that a run takes milliseconds.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "models/config.h"

namespace haversack {

// Hidden 32, 4 heads over 2 of 8, vocabulary 64. GPT-2 ties its embeddings by itself.
inline ModelConfig TinyConfig(const std::string& model_type, int layers, int64_t ffn = 48,
                              bool tied = true) {
  nlohmann::json json = {{"model_type", model_type},
                         {"hidden_size", 32},
                         {"intermediate_size", ffn},
                         {"num_hidden_layers", layers},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"head_dim", 8},
                         {"vocab_size", 64},
                         {"tie_word_embeddings", tied}};
  if (model_type == "gpt2") {
    json = {{"model_type", "gpt2"},
            {"n_embd", 32},
            {"n_layer", layers},
            {"n_head", 4},
            {"vocab_size", 64}};
  }
  return ParseModelConfig(json, "test");
}

}  // namespace haversack
