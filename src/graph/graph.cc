#include "graph/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace haversack {

std::string_view Value::kind() const {
  std::string_view kind = name;
  if (layer >= 0) {
    // "blocks.3.gate_up" -> "gate_up"
    for (int dots = 0; dots < 2; ++dots) kind.remove_prefix(kind.find('.') + 1);
  }
  return kind;
}

int64_t Graph::parameter_count() const {
  int64_t count = 0;
  for (const Param& param : params) count += param.count();
  return count;
}

bool Graph::IsCheap(ValueId v) const {
  const Node& producer = nodes[values[v].producer];
  return producer.op->cheap() && producer.outputs[0] == v;
}

bool Graph::IsRowStatistic(ValueId v) const { return nodes[values[v].producer].outputs[0] != v; }

std::string Graph::ToText() const {
  std::string text;
  const auto names = [](const auto& ids, const auto& table) {
    std::vector<std::string> result;
    for (const int id : ids) result.push_back(table[id].name);
    return result;
  };
  for (const Node& node : nodes) {
    text += fmt::format("{:<28} {:<40} ({}) [{}] -> ({})\n", node.name, node.op->signature(),
                        fmt::join(names(node.inputs, values), ", "),
                        fmt::join(names(node.params, params), ", "),
                        fmt::join(names(node.outputs, values), ", "));
  }
  return text;
}

void Graph::Verify() const {
  HAVERSACK_CHECK(!nodes.empty(), "an empty graph");
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    HAVERSACK_CHECK(node.op != nullptr, "node {}", node.name);
    HAVERSACK_CHECK(node.op->is_loss() == (i + 1 == nodes.size()),
                    "node {} of {}: the loss is last", i, nodes.size());
    HAVERSACK_CHECK(node.inputs.size() <= kMaxOperands && node.outputs.size() <= kMaxOperands &&
                        node.params.size() <= kMaxOperands,
                    "node {} has too many operands", node.name);
    for (const ValueId v : node.inputs) {
      HAVERSACK_CHECK(v >= 0 && v < static_cast<int>(values.size()), "node {}", node.name);
      HAVERSACK_CHECK(values[v].producer < static_cast<int>(i), "node {} reads {} too early",
                      node.name, values[v].name);
    }
    const std::vector<int64_t> cols = node.op->output_cols();
    HAVERSACK_CHECK(cols.size() == node.outputs.size(), "node {}", node.name);
    for (size_t o = 0; o < cols.size(); ++o) {
      HAVERSACK_CHECK(values[node.outputs[o]].cols == cols[o], "node {} output {}", node.name, o);
      int64_t packed = 0;
      for (const Piece& piece : values[node.outputs[o]].pieces) packed += piece.cols;
      HAVERSACK_CHECK(packed == cols[o], "{} packs {} of {} columns", values[node.outputs[o]].name,
                      packed, cols[o]);
      HAVERSACK_CHECK(values[node.outputs[o]].producer == static_cast<int>(i), "node {}",
                      node.name);
    }
    for (const ParamId p : node.params) {
      HAVERSACK_CHECK(p >= 0 && p < static_cast<int>(params.size()), "node {}", node.name);
    }
  }
  for (const Param& param : params) {
    int64_t rows = 0;
    for (const TensorSource& source : param.sources) {
      HAVERSACK_CHECK(source.row_begin == rows, "parameter {} source {}", param.name, source.name);
      rows += source.rows;
    }
    HAVERSACK_CHECK(rows == param.rows || param.sources.empty(), "parameter {} has {} of {} rows",
                    param.name, rows, param.rows);
  }
}

ParamId GraphBuilder::AddParam(Param param) {
  graph_.params.push_back(std::move(param));
  return static_cast<ParamId>(graph_.params.size()) - 1;
}

std::vector<ValueId> GraphBuilder::Apply(std::shared_ptr<const Op> op, const std::string& name,
                                         int layer, std::vector<ValueId> inputs,
                                         std::vector<ParamId> params,
                                         const std::vector<std::string>& output_suffixes) {
  const std::vector<int64_t> cols = op->output_cols();
  const NodeId id = static_cast<NodeId>(graph_.nodes.size());
  std::vector<ValueId> outputs;
  for (size_t o = 0; o < cols.size(); ++o) {
    Value value;
    value.name = o == 0 ? name : name + "." + output_suffixes.at(o - 1);
    value.layer = layer;
    value.cols = cols[o];
    value.pieces = {{.name = std::string(value.kind()), .cols = cols[o]}};
    value.producer = id;
    outputs.push_back(static_cast<ValueId>(graph_.values.size()));
    graph_.values.push_back(std::move(value));
  }
  graph_.nodes.push_back({.name = name,
                          .layer = layer,
                          .op = std::move(op),
                          .inputs = std::move(inputs),
                          .outputs = outputs,
                          .params = std::move(params)});
  graph_.layers = std::max(graph_.layers, layer + 1);
  return outputs;
}

void GraphBuilder::AddProjection(ValueId x, ValueId z, const ProjectionSpec& spec) {
  graph_.projections.push_back({.x = x, .z = z, .spec = spec});
}

void GraphBuilder::Pack(ValueId value, std::vector<Piece> pieces) {
  graph_.values[value].pieces = std::move(pieces);
}

Graph GraphBuilder::Build() && {
  for (NodeId n = static_cast<NodeId>(graph_.nodes.size()) - 1; n >= 0; --n) {
    const Node& node = graph_.nodes[n];
    const bool leads_to_loss =
        node.op->is_loss() || std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
          return graph_.values[v].differentiable;
        });
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      Value& value = graph_.values[node.inputs[i]];
      value.consumers.insert(value.consumers.begin(), n);
      value.differentiable |= leads_to_loss && static_cast<int>(i) != node.op->backward_input();
    }
    const BackwardReads reads = node.op->backward_reads();
    for (const int i : reads.inputs) graph_.values[node.inputs.at(i)].saved = true;
    for (const int o : reads.outputs) graph_.values[node.outputs.at(o)].saved = true;
  }
  graph_.Verify();
  return std::move(graph_);
}

}  // namespace haversack
