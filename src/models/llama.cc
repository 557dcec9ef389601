// Llama 1-3, SmolLM2, TinyLlama.
#include "models/common.h"

namespace haversack {
namespace {

ModelConfig Parse(const JsonFields& fields) {
  ModelConfig config = ParseDecoderConfig(fields, {});
  config.qkv_bias = config.output_bias = fields.Get<bool>("attention_bias", false);
  config.ffn_bias = fields.Get<bool>("mlp_bias", false);
  return config;
}

}  // namespace

const ModelFamily kLlama = {.model_type = "llama",
                            .architecture = "LlamaForCausalLM",
                            .base_architecture = "LlamaModel",
                            .parse = Parse,
                            .build = BuildRotaryDecoder};

}  // namespace haversack
