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

const ModelFamily& FindFamily(const JsonFields& fields) {
  const auto model_type = fields.Optional<std::string>("model_type");
  std::string architecture;
  if (fields.Has("architectures")) {
    const nlohmann::json& list = fields.json()["architectures"];
    if (!list.is_array() || list.empty() || !list[0].is_string()) {
      throw UserError(ExitCode::kUsage, "{}: field 'architectures' must be a list of names",
                      fields.where());
    }
    architecture = list[0].get<std::string>();
  }
  std::string known;
  for (const ModelFamily& family : ModelFamilies()) {
    const bool type_agrees = !model_type || *model_type == family.model_type;
    const bool architecture_agrees = architecture.empty() || architecture == family.architecture;
    if ((model_type || !architecture.empty()) && type_agrees && architecture_agrees) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.architecture);
  }
  throw UserError(ExitCode::kUsage,
                  "{}: architecture '{}' (model_type '{}') is not supported; supported are {}",
                  fields.where(), architecture, model_type.value_or(""), known);
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
  ModelConfig config = family.parse(fields);
  config.model_type = family.model_type;
  config.json = json;
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
    return {fmt::format("sequences of {} tokens pass max_position_embeddings = {}: rotary positions "
                        "go on, but the model was not trained there",
                        seq, config.max_positions)};
  }
  return {};
}

Graph BuildGraph(const ModelConfig& config, const BuildOptions& options) {
  return FamilyOf(config).build(config, options);
}

}  // namespace haversack
