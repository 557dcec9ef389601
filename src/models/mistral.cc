// Mistral: Llama with a sliding window, which is refused where it would matter
// (CheckSequenceLength).
#include "models/common.h"

namespace haversack {
namespace {

ModelConfig Parse(const JsonFields& fields) {
  ModelConfig config = ParseDecoderConfig(fields, {.kv_heads = 8, .max_positions = 4096 * 32});
  // transformers' default where the field is missing altogether; null means no window.
  if (!fields.json().contains("sliding_window")) config.sliding_window = 4096;
  if (fields.Has("sliding_window")) config.sliding_window = fields.RequiredSize("sliding_window");
  return config;
}

}  // namespace

const ModelFamily kMistral = {.model_type = "mistral",
                              .architecture = "MistralForCausalLM",
                              .base_architecture = "MistralModel",
                              .parse = Parse,
                              .build = BuildRotaryDecoder};

}  // namespace haversack
