// What a model's config.json says, as far as the graph needs it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fields.h"
#include "graph/graph.h"
#include "kernels/matmul.h"
#include "models/low_rank.h"
#include "ops/rope_table.h"

namespace haversack {

enum class Activation { kSilu, kGeluTanh, kGeluErf };

struct ModelConfig {
  std::string model_type;  // "llama"
  int64_t hidden = 0;
  int64_t ffn = 0;
  int64_t layers = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;
  bool learned_positions = false;  // max_positions is a hard limit
  Activation activation = Activation::kSilu;
  float norm_epsilon = 1e-5f;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool ffn_bias = false;
  bool qk_norm = false;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double initializer_range = 0.02;
  std::optional<int64_t> sliding_window;
  std::vector<int32_t> eos_ids;
  std::optional<int32_t> bos_id, pad_id;
  std::vector<std::string> warnings;
  nlohmann::json
      json;  // the whole file, for export, with `model_type` and `architectures` filled in
};

// What a run adds to the configuration.
struct BuildOptions {
  int64_t positions = 0;     // rows of the rotary table: the longest sequence
  int64_t loss_chunk = 256;  // tokens whose logits exist at once
  ComputeType compute = ComputeType::kF32;
  LowRankOptions low_rank = {};
};

// A model family: one file in this folder and one line in family.cc.
struct ModelFamily {
  std::string_view model_type;
  std::string_view architecture;
  std::string_view base_architecture;  // without the head; the weights' names may lack its prefix
  ModelConfig (*parse)(const JsonFields& fields);
  Graph (*build)(const ModelConfig& config, const BuildOptions& options);
};

const std::vector<ModelFamily>& ModelFamilies();

// Reads `where` (a config.json's path, for messages). Throws UserError (exit 2) naming the field:
// an unknown architecture, activation or rope type is refused with the list of what is supported.
ModelConfig ParseModelConfig(const nlohmann::json& json, const std::string& where);

// Throws UserError (exit 2) when sequences of `seq` tokens need what this model does not have:
// learned positions past the last, or a sliding window that would matter. Returns warnings.
std::vector<std::string> CheckSequenceLength(const ModelConfig& config, int64_t seq);

Graph BuildGraph(const ModelConfig& config, const BuildOptions& options);

}  // namespace haversack
