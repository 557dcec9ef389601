#include "models/common.h"

#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"

namespace haversack {
namespace {

// Rotary scaling as transformers 4 (`rope_scaling`, key `type` or `rope_type`, theta at the top) and
// transformers 5 (`rope_parameters`, theta inside) write it.
void ParseRope(const JsonFields& fields, ModelConfig& config) {
  const JsonFields parameters = fields.Sub("rope_parameters");
  const JsonFields scaling = fields.Sub("rope_scaling");
  const JsonFields& rope = fields.Has("rope_parameters") ? parameters : scaling;
  config.rope_theta = rope.Get<double>("rope_theta", fields.Get<double>("rope_theta", 10000.0));
  if (config.rope_theta <= 0) {
    throw UserError(ExitCode::kUsage, "{}: field 'rope_theta' is {}; it must be positive",
                    fields.where(), config.rope_theta);
  }
  const std::string type = rope.Get<std::string>("rope_type", rope.Get<std::string>("type", "default"));
  if (rope.Get<double>("partial_rotary_factor", fields.Get<double>("partial_rotary_factor", 1.0)) !=
      1.0) {
    throw UserError(ExitCode::kUsage, "{}: field 'partial_rotary_factor' other than 1 is not supported",
                    fields.where());
  }
  if (type == "default") return;
  if (type == "linear") {
    config.rope_scaling = LinearRopeScaling{.factor = rope.Required<double>("factor")};
  } else if (type == "llama3") {
    config.rope_scaling = Llama3RopeScaling{
        .factor = rope.Required<double>("factor"),
        .low_freq_factor = rope.Required<double>("low_freq_factor"),
        .high_freq_factor = rope.Required<double>("high_freq_factor"),
        .original_max_positions = rope.Required<double>("original_max_position_embeddings")};
  } else {
    throw UserError(ExitCode::kUsage,
                    "{}: rope type '{}' is not supported; supported are default, linear, llama3",
                    rope.where(), type);
  }
  if (rope.Required<double>("factor") <= 0) {
    throw UserError(ExitCode::kUsage, "{}: field 'factor' must be positive", rope.where());
  }
}

}  // namespace

Activation ParseActivation(const JsonFields& fields, const std::string& key,
                           const std::string& fallback) {
  static const std::map<std::string, Activation> known = {
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu", Activation::kGeluErf},
  };
  const auto name = fields.Get<std::string>(key, fallback);
  const auto found = known.find(name);
  if (found == known.end()) {
    throw UserError(ExitCode::kUsage,
                    "{}: {} '{}' is not supported; supported are silu, gelu, gelu_new, "
                    "gelu_pytorch_tanh",
                    fields.where(), key, name);
  }
  return found->second;
}

void ParseSpecialTokens(const JsonFields& fields, ModelConfig& config) {
  config.eos_ids.clear();
  if (fields.Has("eos_token_id")) {
    const nlohmann::json& eos = fields.json()["eos_token_id"];
    const nlohmann::json list = eos.is_array() ? eos : nlohmann::json::array({eos});
    for (const nlohmann::json& id : list) {
      if (!id.is_number_integer()) {
        throw UserError(ExitCode::kUsage, "{}: field 'eos_token_id' holds {}; expected token ids",
                        fields.where(), id.dump());
      }
      config.eos_ids.push_back(id.get<int32_t>());
    }
  }
  const auto optional_id = [&](const char* key) -> std::optional<int32_t> {
    const auto id = fields.Optional<int64_t>(key);
    return id ? std::optional<int32_t>(static_cast<int32_t>(*id)) : std::nullopt;
  };
  config.bos_id = optional_id("bos_token_id");
  config.pad_id = optional_id("pad_token_id");
}

void CheckHeads(const JsonFields& fields, const ModelConfig& config) {
  if (config.q_heads % config.kv_heads != 0) {
    throw UserError(ExitCode::kUsage,
                    "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}",
                    fields.where(), config.q_heads, config.kv_heads);
  }
  if (config.head_dim % 2 != 0) {
    throw UserError(ExitCode::kUsage, "{}: head_dim {} is odd; rotary positions need pairs",
                    fields.where(), config.head_dim);
  }
}

ModelConfig ParseDecoderConfig(const JsonFields& fields) {
  ModelConfig config;
  config.hidden = fields.RequiredSize("hidden_size");
  config.ffn = fields.RequiredSize("intermediate_size");
  config.layers = fields.RequiredSize("num_hidden_layers");
  config.q_heads = fields.RequiredSize("num_attention_heads");
  config.kv_heads = fields.Size("num_key_value_heads", config.q_heads);
  config.vocab = fields.RequiredSize("vocab_size");
  if (!fields.Has("head_dim") && config.hidden % config.q_heads != 0) {
    throw UserError(ExitCode::kUsage,
                    "{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is "
                    "no head_dim",
                    fields.where(), config.hidden, config.q_heads);
  }
  config.head_dim = fields.Size("head_dim", config.hidden / config.q_heads);
  config.max_positions = fields.Size("max_position_embeddings", 2048);
  config.activation = ParseActivation(fields, "hidden_act", "silu");
  if (config.activation != Activation::kSilu) {
    throw UserError(ExitCode::kUsage, "{}: hidden_act '{}' is not supported for this family; "
                    "supported is silu",
                    fields.where(), fields.Get<std::string>("hidden_act", ""));
  }
  config.norm_epsilon = static_cast<float>(fields.Get<double>("rms_norm_eps", 1e-6));
  config.tied_embeddings = fields.Get<bool>("tie_word_embeddings", false);
  config.initializer_range = fields.Get<double>("initializer_range", 0.02);
  ParseRope(fields, config);
  ParseSpecialTokens(fields, config);
  CheckHeads(fields, config);
  return config;
}

ParamId AddMatrix(GraphBuilder& builder, const std::string& name, int64_t rows, int64_t cols,
                  const std::vector<TensorSource>& sources, float init_std) {
  return builder.AddParam({.name = name,
                           .rows = rows,
                           .cols = cols,
                           .init = ParamInit::kNormal,
                           .init_std = init_std,
                           .decay = true,
                           .sources = sources});
}

ParamId AddVector(GraphBuilder& builder, const std::string& name, int64_t cols, ParamInit init,
                  const std::vector<std::pair<std::string, int64_t>>& sources) {
  // A vector is a parameter of `cols` rows and one column, so that packed biases come in pieces.
  Param param{.name = name, .rows = cols, .cols = 1, .init = init, .decay = false, .sources = {}};
  int64_t row = 0;
  for (const auto& [tensor, rows] : sources) {
    param.sources.push_back({.name = tensor, .row_begin = row, .rows = rows, .vector = true});
    row += rows;
  }
  return builder.AddParam(std::move(param));
}

}  // namespace haversack
