// Qwen 3: queries and keys are normalised per head before rotary positions.
#include "models/common.h"

namespace haversack {
namespace {

ModelConfig Parse(const JsonFields& fields) {
  ModelConfig config =
      ParseDecoderConfig(fields, {.kv_heads = 32, .head_dim = 128, .max_positions = 32768});
  config.qk_norm = true;
  config.qkv_bias = config.output_bias = fields.Get<bool>("attention_bias", false);
  config.sliding_window = ParseWindow(fields, config.layers);
  return config;
}

}  // namespace

const ModelFamily kQwen3 = {.model_type = "qwen3",
                            .architecture = "Qwen3ForCausalLM",
                            .base_architecture = "Qwen3Model",
                            .parse = Parse,
                            .build = BuildRotaryDecoder};

}  // namespace haversack
