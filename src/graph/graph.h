// The forward pass of one micro-batch: ops in topological order over named values and parameters.
//
//   GraphBuilder b;
//   ParamId w = b.AddParam({.name = "blocks.0.qkv", .rows = 960, .cols = 576});
//   ValueId y = b.Apply(std::make_shared<Linear>(576, 960, false), "blocks.0.qkv", {x}, {w})[0];
//   Graph graph = std::move(b).Build();
//
// Pure structure: no tensors, no plan. Shapes of values are [tokens, cols]; tokens come with the
// micro-batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/projection.h"
#include "ops/op.h"

namespace haversack {

using ValueId = int;
using ParamId = int;
using NodeId = int;

// Columns that lie side by side in one value but are stored each in its own way.
struct Piece {
  std::string name;  // "gate"
  int64_t cols = 0;
};

struct Value {
  std::string name;  // "blocks.3.gate_up"
  int layer = -1;    // block index, -1 outside the blocks
  int64_t cols = 0;
  std::vector<Piece> pieces;  // what it packs, in order: q, k, v; itself where it packs nothing
  NodeId producer = -1;
  std::vector<NodeId> consumers;
  bool differentiable = false;  // some path from it leads to the loss
  bool saved = false;           // some op's backward reads it

  // The name within its block: "gate_up".
  std::string_view kind() const;
  int64_t bytes(int64_t tokens) const {
    return tokens * cols * static_cast<int64_t>(sizeof(float));
  }
};

enum class ParamInit { kNormal, kOnes, kZeros };

// Where a parameter's rows come from in a Hugging Face checkpoint.
struct TensorSource {
  std::string name;       // "model.layers.0.self_attn.q_proj.weight"
  int64_t row_begin = 0;  // rows [row_begin, row_begin + rows) of the parameter
  int64_t rows = 0;
  bool transposed = false;  // stored [cols, rows] (GPT-2's Conv1D)
  bool vector = false;      // stored with one dimension
};

struct Param {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  ParamInit init = ParamInit::kNormal;
  float init_std = 0;  // of kNormal
  bool decay = true;   // weight decay applies (not to norms and biases)
  std::vector<TensorSource> sources;
  // Index into Graph::projections: its gradient is [rows, rank] in the space of that projection.
  int projection = -1;
  int64_t projected_cols = 0;  // the rank

  int64_t count() const { return rows * cols; }
  int64_t gradient_count() const { return projection < 0 ? count() : rows * projected_cols; }
};

// A value that linear layers keep as z = x P for their weights' gradients.
struct ProjectedValue {
  ValueId x = -1;
  ValueId z = -1;
  ProjectionSpec spec;
};

struct Node {
  std::string name;
  int layer = -1;
  std::shared_ptr<const Op> op;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<ParamId> params;
};

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;  // topological order; the last one is the loss
  std::vector<Param> params;
  std::vector<ProjectedValue> projections;
  int layers = 0;

  int64_t parameter_count() const;
  // Whether one element-wise pass over stored inputs rebuilds the value: never worth keeping.
  bool IsCheap(ValueId v) const;
  // Log-sum-exp, rstd and the like: further outputs of an op, a few numbers a row.
  bool IsRowStatistic(ValueId v) const;
  // One line a node; stable, for tests and `--dump`.
  std::string ToText() const;
  // Throws InternalError unless ids are in range, each value is produced before it is consumed,
  // operand shapes agree with the ops and the last node is the only loss.
  void Verify() const;
};

class GraphBuilder {
 public:
  ParamId AddParam(Param param);
  // Says that value `z` is a projection of `x`.
  void AddProjection(ValueId x, ValueId z, const ProjectionSpec& spec);
  // Adds a node and its output values, named `name` plus `.suffix` for each further output in
  // `output_suffixes`; `layer` groups nodes into blocks.
  std::vector<ValueId> Apply(std::shared_ptr<const Op> op, const std::string& name, int layer,
                             std::vector<ValueId> inputs, std::vector<ParamId> params,
                             const std::vector<std::string>& output_suffixes = {});
  // Names what `value` packs; the columns add up to its own.
  void Pack(ValueId value, std::vector<Piece> pieces);
  // Fills consumers, differentiability and saved values, and verifies.
  Graph Build() &&;

 private:
  Graph graph_;
};

}  // namespace haversack
