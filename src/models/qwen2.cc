// Qwen 2 and 2.5: biases on queries, keys and values.
#include "models/common.h"

namespace haversack {
namespace {

ModelConfig Parse(const JsonFields& fields) {
  ModelConfig config = ParseDecoderConfig(fields);
  config.qkv_bias = true;
  if (fields.Get<bool>("use_sliding_window", false)) {
    config.sliding_window = fields.Size("sliding_window", 4096);
  }
  return config;
}

}  // namespace

const ModelFamily kQwen2 = {.model_type = "qwen2",
                            .architecture = "Qwen2ForCausalLM",
                            .parse = Parse,
                            .build = BuildRotaryDecoder};

}  // namespace haversack
