// What the families share: readers of the usual fields, and the pre-norm decoder block.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/config.h"

namespace haversack {

// What a family takes for a field that its config.json leaves out (transformers' configuration
// classes).
struct DecoderDefaults {
  std::optional<int64_t> kv_heads = {};  // none: as many as query heads
  std::optional<int64_t> head_dim = {};  // none: hidden_size / num_attention_heads
  int64_t max_positions = 2048;
};

// The fields of a Llama-like config.json: sizes, heads, norms, rope, special tokens.
ModelConfig ParseDecoderConfig(const JsonFields& fields, const DecoderDefaults& defaults);
// Qwen's `use_sliding_window`, `sliding_window`, `max_window_layers` and `layer_types`: the window,
// if any of the `layers` has one.
std::optional<int64_t> ParseWindow(const JsonFields& fields, int64_t layers);
// "silu", "gelu_new" and their other spellings; what is not among `supported` is refused by name.
Activation ParseActivation(const JsonFields& fields, const std::string& key,
                           const std::string& fallback, const std::vector<Activation>& supported);
// `eos_token_id` (a number, a list, or null), `bos_token_id`, `pad_token_id`.
void ParseSpecialTokens(const JsonFields& fields, ModelConfig& config);
// Throws UserError for a size past any model's, before a graph of such a size is built.
void RefuseHugeSizes(const JsonFields& fields, const std::string& layers_key,
                     const std::vector<std::string>& size_keys);
// Throws UserError unless `heads` are consistent: q_heads a multiple of kv_heads, an even head_dim.
void CheckHeads(const JsonFields& fields, const ModelConfig& config);

// Tensor names of a decoder in a Hugging Face checkpoint.
ParamId AddMatrix(GraphBuilder& builder, const std::string& name, int64_t rows, int64_t cols,
                  const std::vector<TensorSource>& sources, float init_std);
ParamId AddVector(GraphBuilder& builder, const std::string& name, int64_t cols, ParamInit init,
                  const std::vector<std::pair<std::string, int64_t>>& sources);

// Llama, Mistral, Qwen 2 and Qwen 3: RMSNorm, rotary positions, SwiGLU.
Graph BuildRotaryDecoder(const ModelConfig& config, const BuildOptions& options);

// The families; family.cc lists them.
extern const ModelFamily kLlama, kMistral, kQwen2, kQwen3, kGpt2;

}  // namespace haversack
