// A model directory opened: its configuration and graph, checked against its weight files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/model_state.h"
#include "graph/graph.h"
#include "io/weight_files.h"
#include "models/config.h"

namespace haversack {

struct Model {
  std::string dir;
  BuildOptions build;
  ModelConfig config;
  Graph graph;
  ParamLayout layout;
  std::optional<WeightFiles> files;  // none: random weights are wanted
  std::vector<std::string> notes;    // for the user
};

// Opens `dir` for sequences of `build.positions` tokens. Without `with_weights` only config.json is
// read. Throws UserError naming file and field or tensor.
Model OpenModel(const std::string& dir, const BuildOptions& build, bool with_weights);

// Opens and checks the weights of a model that was opened without.
void OpenWeights(Model& model);

// Identity of the model by content: configuration, tensor table, and a sample of the weights.
std::string ModelHash(const Model& model);

}  // namespace haversack
