// A Hugging Face model directory: weights in and out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/model_state.h"
#include "graph/graph.h"
#include "io/weight_files.h"
#include "models/config.h"

namespace haversack {

// Checks that `files` hold every tensor of the graph with its shape, before anything is read.
// Throws UserError (exit 2) naming every missing or misshapen tensor. Returns notes on tensors that
// the model has no use for.
std::vector<std::string> CheckWeights(const Graph& graph, const ModelConfig& config,
                                      const WeightFiles& files);

// Fills the flat `weights` [layout.total] from the files. Throws UserError (exit 2) naming a tensor
// that holds NaN or infinity.
void LoadWeights(const Graph& graph, const ParamLayout& layout, const WeightFiles& files,
                 float* weights);

// Random weights as the family initialises them; the same for any number of threads.
void InitWeights(const Graph& graph, const ParamLayout& layout, uint64_t seed, float* weights);

// Bytes that ExportModel writes, as nearly as can be known ahead.
int64_t ExportBytes(const Graph& graph, const std::string& dtype, const std::string& source_dir);

// Writes a model directory that transformers loads: config.json, model.safetensors in `dtype`
// ("F32", "BF16", "F16"), and the tokenizer files of `source_dir`. Written beside `out_dir` and
// renamed over it when whole, so that nothing of an older export remains and nothing half-written
// is ever there. Throws UserError naming the tensor where one holds numbers that are not finite
// (exit 4) or too large for `dtype` (exit 2).
void ExportModel(const Graph& graph, const ParamLayout& layout, const ModelConfig& config,
                 const float* weights, const std::string& source_dir, const std::string& dtype,
                 const std::string& out_dir);

}  // namespace haversack
