#include <algorithm>
#include <string>

#include "base/error.h"
#include "models/common.h"
#include "models/config.h"

namespace haversack {

const std::vector<ModelFamily>& ModelFamilies() {
  static const std::vector<ModelFamily> families = {kLlama, kMistral, kQwen2, kQwen3, kGpt2};
  return families;
}

namespace {

// The first of `architectures`; empty where there is none.
std::string Architecture(const JsonFields& fields) {
  if (!fields.Has("architectures")) return "";
  const nlohmann::json& list = fields.json()["architectures"];
  if (!list.is_array() || (!list.empty() && !list[0].is_string())) {
    throw UserError(ExitCode::kUsage, "{}: field 'architectures' must be a list of names",
                    fields.where());
  }
  return list.empty() ? "" : list[0].get<std::string>();
}

const ModelFamily& FindFamily(const JsonFields& fields) {
  const auto model_type = fields.Optional<std::string>("model_type");
  const std::string architecture = Architecture(fields);
  std::string known;
  for (const ModelFamily& family : ModelFamilies()) {
    const bool type_agrees = !model_type || *model_type == family.model_type;
    const bool architecture_agrees = architecture.empty() || architecture == family.architecture ||
                                     architecture == family.base_architecture;
    if ((model_type || !architecture.empty()) && type_agrees && architecture_agrees) return family;
    known += fmt::format("{}{} (model_type '{}')", known.empty() ? "" : ", ", family.architecture,
                         family.model_type);
  }
  throw UserError(ExitCode::kUsage,
                  "{}: architecture '{}' (model_type '{}') is not supported; supported are {}",
                  fields.where(), architecture, model_type.value_or(""), known);
}

// Weights in less than 16 bits come with scales beside them, under names of each method's own.
void RefuseQuantized(const JsonFields& fields) {
  if (!fields.Has("quantization_config")) return;
  throw UserError(
      ExitCode::kUsage,
      "{}: field 'quantization_config' (method '{}') is not supported; use the model in "
      "f32, f16 or bf16",
      fields.where(), fields.Sub("quantization_config").Get<std::string>("quant_method", ""));
}

const ModelFamily& FamilyOf(const ModelConfig& config) {
  const auto& families = ModelFamilies();
  const auto found = std::find_if(families.begin(), families.end(), [&](const ModelFamily& f) {
    return f.model_type == config.model_type;
  });
  HAVERSACK_CHECK(found != families.end(), "model type {}", config.model_type);
  return *found;
}

}  // namespace

ModelConfig ParseModelConfig(const nlohmann::json& json, const std::string& where) {
  const JsonFields fields(json, where);
  const ModelFamily& family = FindFamily(fields);
  RefuseQuantized(fields);
  ModelConfig config = family.parse(fields);
  config.model_type = family.model_type;
  config.json = json;
  // What transformers goes by, also where the file left it out or names the model without its head.
  config.json["model_type"] = family.model_type;
  config.json["architectures"] = nlohmann::json::array({family.architecture});
  return config;
}

std::vector<std::string> CheckSequenceLength(const ModelConfig& config, int64_t seq) {
  if (config.learned_positions && seq > config.max_positions) {
    throw UserError(ExitCode::kUsage,
                    "sequences of {} tokens pass this model's n_positions of {} (learned "
                    "positions end there); use --seq {} or less",
                    seq, config.max_positions, config.max_positions);
  }
  if (config.sliding_window && seq > *config.sliding_window) {
    throw UserError(ExitCode::kUsage,
                    "this model attends within a sliding_window of {} tokens, which is not "
                    "supported for longer sequences; use --seq {} or less",
                    *config.sliding_window, *config.sliding_window);
  }
  if (seq > config.max_positions) {
    return {
        fmt::format("sequences of {} tokens pass max_position_embeddings = {}: rotary positions "
                    "go on, but the model was not trained there",
                    seq, config.max_positions)};
  }
  return {};
}

Graph BuildGraph(const ModelConfig& config, const BuildOptions& options) {
  Graph graph = FamilyOf(config).build(config, options);
  if (options.low_rank.method == LowRankMethod::kNone) return graph;
  return ApplyLowRank(graph, options.low_rank, options.compute);
}

}  // namespace haversack
