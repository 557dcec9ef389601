// Qwen 3: queries and keys are normalised per head before rotary positions.
#include "models/common.h"

namespace haversack {
namespace {

ModelConfig Parse(const JsonFields& fields) {
  ModelConfig config = ParseDecoderConfig(fields);
  if (!fields.Has("head_dim")) config.head_dim = 128;  // transformers' default for this family
  config.qk_norm = true;
  config.qkv_bias = config.output_bias = fields.Get<bool>("attention_bias", false);
  if (fields.Get<bool>("use_sliding_window", false)) {
    config.sliding_window = fields.Size("sliding_window", 4096);
  }
  return config;
}

}  // namespace

const ModelFamily kQwen3 = {.model_type = "qwen3",
                            .architecture = "Qwen3ForCausalLM",
                            .parse = Parse,
                            .build = BuildRotaryDecoder};

}  // namespace haversack
