#include "models/common.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"

namespace haversack {
namespace {

struct Rope {
  double theta = 0;
  RopeScaling scaling;
  bool operator==(const Rope&) const = default;
};

double Positive(const JsonFields& fields, const std::string& key, double value) {
  if (value > 0) return value;
  throw UserError(ExitCode::kUsage, "{}: field '{}' is {}; it must be positive", fields.where(),
                  key, value);
}

double RequiredPositive(const JsonFields& fields, const std::string& key) {
  return Positive(fields, key, fields.Required<double>(key));
}

// The length that the model was pre-trained at. Where both say one, the field beside the rope's
// object wins, and where none does the longest position stands for it, as in transformers.
double OriginalPositions(const JsonFields& fields, const JsonFields& rope, ModelConfig& config) {
  constexpr const char* kKey = "original_max_position_embeddings";
  if (fields.Has(kKey)) return RequiredPositive(fields, kKey);
  if (rope.Has(kKey)) return RequiredPositive(rope, kKey);
  config.warnings.push_back(
      fmt::format("{}: field '{}' is missing; max_position_embeddings = {} stands for it",
                  rope.where(), kKey, config.max_positions));
  return static_cast<double>(config.max_positions);
}

Rope ParseRopeObject(const JsonFields& fields, const JsonFields& rope, double theta,
                     ModelConfig& config) {
  for (const auto& [key, value] : rope.json().items()) {
    if (!value.is_object()) continue;
    throw UserError(
        ExitCode::kUsage,
        "{}: '{}' has rotary positions of its own; one kind for all layers is supported",
        rope.where(), key);
  }
  Rope result;
  result.theta = Positive(rope, "rope_theta", rope.Get<double>("rope_theta", theta));
  if (rope.Get<double>("partial_rotary_factor", fields.Get<double>("partial_rotary_factor", 1.0)) !=
      1.0) {
    throw UserError(ExitCode::kUsage,
                    "{}: field 'partial_rotary_factor' other than 1 is not supported",
                    fields.where());
  }
  const auto type = rope.Get<std::string>("rope_type", rope.Get<std::string>("type", "default"));
  if (type == "linear") {
    result.scaling = LinearRopeScaling{.factor = RequiredPositive(rope, "factor")};
  } else if (type == "llama3") {
    result.scaling =
        Llama3RopeScaling{.factor = RequiredPositive(rope, "factor"),
                          .low_freq_factor = RequiredPositive(rope, "low_freq_factor"),
                          .high_freq_factor = RequiredPositive(rope, "high_freq_factor"),
                          .original_max_positions = OriginalPositions(fields, rope, config)};
  } else if (type != "default") {
    throw UserError(ExitCode::kUsage,
                    "{}: rope type '{}' is not supported; supported are default, linear, llama3",
                    rope.where(), type);
  }
  return result;
}

// Rotary positions as transformers 4 (`rope_scaling`, key `type` or `rope_type`, theta at the top)
// and transformers 5 (`rope_parameters`, theta inside) write them. A file may hold both where they
// agree: which of them another program takes is not known.
void ParseRope(const JsonFields& fields, ModelConfig& config) {
  const JsonFields parameters = fields.Sub("rope_parameters");
  const JsonFields scaling = fields.Sub("rope_scaling");
  const bool both = !parameters.json().empty() && !scaling.json().empty();
  const auto top = fields.Optional<double>("rope_theta");
  const auto inside = parameters.Optional<double>("rope_theta");
  if (top && inside && *top != *inside) {
    throw UserError(ExitCode::kUsage,
                    "{}: field 'rope_theta' is {}, but rope_parameters says {}; remove one of them",
                    fields.where(), *top, *inside);
  }
  const double theta = inside.value_or(top.value_or(10000.0));
  const Rope rope =
      ParseRopeObject(fields, scaling.json().empty() ? parameters : scaling, theta, config);
  if (both && rope != ParseRopeObject(fields, parameters, theta, config)) {
    throw UserError(ExitCode::kUsage,
                    "{}: fields 'rope_parameters' and 'rope_scaling' disagree; remove one of them",
                    fields.where());
  }
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
}

int32_t TokenId(const JsonFields& fields, const std::string& key, const nlohmann::json& id) {
  if (id.is_number_integer()) {
    const auto value = id.get<int64_t>();
    if (value == static_cast<int32_t>(value)) return static_cast<int32_t>(value);
  }
  throw UserError(ExitCode::kUsage, "{}: field '{}' holds {}; expected token ids", fields.where(),
                  key, id.dump());
}

}  // namespace

Activation ParseActivation(const JsonFields& fields, const std::string& key,
                           const std::string& fallback, const std::vector<Activation>& supported) {
  static const std::map<std::string, Activation> known = {
      {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
      {"gelu_new", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu", Activation::kGeluErf},
  };
  const auto is_supported = [&](Activation activation) {
    return std::find(supported.begin(), supported.end(), activation) != supported.end();
  };
  const auto name = fields.Get<std::string>(key, fallback);
  const auto found = known.find(name);
  if (found != known.end() && is_supported(found->second)) return found->second;
  std::string list;
  for (const auto& [spelling, activation] : known) {
    if (is_supported(activation)) list += (list.empty() ? "" : ", ") + spelling;
  }
  throw UserError(ExitCode::kUsage,
                  "{}: {} '{}' is not supported for this family; supported are {}", fields.where(),
                  key, name, list);
}

void ParseSpecialTokens(const JsonFields& fields, ModelConfig& config) {
  config.eos_ids.clear();
  if (fields.Has("eos_token_id")) {
    const nlohmann::json& eos = fields.json()["eos_token_id"];
    const nlohmann::json list = eos.is_array() ? eos : nlohmann::json::array({eos});
    for (const nlohmann::json& id : list) {
      config.eos_ids.push_back(TokenId(fields, "eos_token_id", id));
    }
  }
  const auto optional_id = [&](const char* key) -> std::optional<int32_t> {
    if (!fields.Has(key)) return std::nullopt;
    return TokenId(fields, key, fields.json()[key]);
  };
  config.bos_id = optional_id("bos_token_id");
  config.pad_id = optional_id("pad_token_id");
}

void RefuseHugeSizes(const JsonFields& fields, const std::string& layers_key,
                     const std::vector<std::string>& size_keys) {
  const auto refuse_above = [&](int64_t most, const std::string& key) {
    const int64_t size = fields.Get<int64_t>(key, 0);
    if (size <= most) return;
    throw UserError(ExitCode::kUsage, "{}: field '{}' is {}; at most {} are supported",
                    fields.where(), key, size, most);
  };
  refuse_above(4096, layers_key);
  for (const std::string& key : size_keys) refuse_above(int64_t{1} << 24, key);
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

std::optional<int64_t> ParseWindow(const JsonFields& fields, int64_t layers) {
  if (!fields.Get<bool>("use_sliding_window", false)) return std::nullopt;
  bool matters = fields.Size("max_window_layers", 28, 0) < layers;
  if (fields.Has("layer_types")) {
    matters = false;
    for (const nlohmann::json& type : fields.json()["layer_types"]) {
      if (type != "full_attention" && type != "sliding_attention") {
        throw UserError(ExitCode::kUsage,
                        "{}: field 'layer_types' holds {}; supported are \"full_attention\" and "
                        "\"sliding_attention\"",
                        fields.where(), type.dump());
      }
      matters |= type == "sliding_attention";
    }
  }
  // Present but null: no window, although it is asked for.
  if (!matters || (fields.json().contains("sliding_window") && !fields.Has("sliding_window"))) {
    return std::nullopt;
  }
  return fields.Size("sliding_window", 4096);
}

ModelConfig ParseDecoderConfig(const JsonFields& fields, const DecoderDefaults& defaults) {
  RefuseHugeSizes(fields, "num_hidden_layers",
                  {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                   "head_dim", "vocab_size"});
  ModelConfig config;
  config.hidden = fields.RequiredSize("hidden_size");
  config.ffn = fields.RequiredSize("intermediate_size");
  config.layers = fields.RequiredSize("num_hidden_layers");
  config.q_heads = fields.RequiredSize("num_attention_heads");
  // Present but null means as many as query heads; missing, the family's default.
  config.kv_heads =
      fields.Size("num_key_value_heads", fields.json().contains("num_key_value_heads")
                                             ? config.q_heads
                                             : defaults.kv_heads.value_or(config.q_heads));
  config.vocab = fields.RequiredSize("vocab_size");
  if (!fields.Has("head_dim") && !defaults.head_dim && config.hidden % config.q_heads != 0) {
    throw UserError(ExitCode::kUsage,
                    "{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is "
                    "no head_dim",
                    fields.where(), config.hidden, config.q_heads);
  }
  config.head_dim =
      fields.Size("head_dim", defaults.head_dim.value_or(config.hidden / config.q_heads));
  config.max_positions = fields.Size("max_position_embeddings", defaults.max_positions);
  config.activation = ParseActivation(fields, "hidden_act", "silu", {Activation::kSilu});
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
