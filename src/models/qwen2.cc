// Qwen 2 and 2.5: biases on queries, keys and values.
#include "models/common.h"

namespace haversack {
namespace {

ModelConfig Parse(const JsonFields& fields) {
  ModelConfig config = ParseDecoderConfig(fields, {.kv_heads = 32, .max_positions = 32768});
  config.qkv_bias = true;
  config.sliding_window = ParseWindow(fields, config.layers);
  return config;
}

}  // namespace

const ModelFamily kQwen2 = {.model_type = "qwen2",
                            .architecture = "Qwen2ForCausalLM",
                            .base_architecture = "Qwen2Model",
                            .parse = Parse,
                            .build = BuildRotaryDecoder};

}  // namespace haversack
