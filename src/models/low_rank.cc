#include "models/low_rank.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/projection.h"

namespace haversack {
namespace {

class LowRankPass {
 public:
  LowRankPass(const Graph& graph, const LowRankOptions& options, ComputeType compute)
      : graph_(graph), options_(options), compute_(compute) {
    param_uses_.assign(graph.params.size(), 0);
    for (const Node& node : graph.nodes) {
      for (const ParamId p : node.params) ++param_uses_[p];
    }
  }

  Graph Run() {
    for (const Param& param : graph_.params) params_.push_back(param);
    mapped_.assign(graph_.values.size(), -1);
    projected_.assign(graph_.values.size(), -1);
    for (const Node& node : graph_.nodes) Copy(node);
    if (count_ == 0) {
      throw UserError(ExitCode::kUsage,
                      "--method {}: at this rank no linear layer of this model would hold less; "
                      "lower --rank-ratio, or ask for a rank with --rank",
                      ToText(options_.method));
    }
    for (Param& param : params_) builder_.AddParam(std::move(param));
    return std::move(builder_).Build();
  }

 private:
  void Copy(const Node& node) {
    std::vector<ValueId> inputs;
    for (const ValueId v : node.inputs) inputs.push_back(mapped_[v]);
    std::shared_ptr<const Op> op = node.op;
    if (!node.inputs.empty() && projected_[node.inputs[0]] >= 0 && ReadsInput(node, 0)) {
      const ProjectionSpec& spec = specs_[projected_[node.inputs[0]]];
      op = op->WithProjectedInput(spec.rank);
      inputs.push_back(z_[spec.index]);
      Param& weight = params_[node.params[0]];
      weight.projection = static_cast<int>(spec.index);
      weight.projected_cols = spec.rank;
    }
    std::vector<std::string> suffixes;
    for (size_t o = 1; o < node.outputs.size(); ++o) {
      suffixes.push_back(graph_.values[node.outputs[o]].name.substr(node.name.size() + 1));
    }
    const std::vector<ValueId> outputs =
        builder_.Apply(op, node.name, node.layer, std::move(inputs), node.params, suffixes);
    for (size_t o = 0; o < outputs.size(); ++o) {
      mapped_[node.outputs[o]] = outputs[o];
      builder_.Pack(outputs[o], graph_.values[node.outputs[o]].pieces);
    }
    if (!node.outputs.empty() && Projectable(node.outputs[0])) Project(node.outputs[0]);
  }

  void Project(ValueId v) {
    const Value& value = graph_.values[v];
    const ProjectionSpec spec = SpecOf(value);
    if (!options_.rank && !Saves(v, spec.rank)) return;
    const ValueId x = mapped_[v];
    z_.push_back(builder_.Apply(std::make_shared<Projection>(spec, compute_), value.name + ".z",
                                value.layer, {x}, {})[0]);
    builder_.AddProjection(x, z_.back(), spec);
    specs_.push_back(spec);
    projected_[v] = count_++;
  }

  ProjectionSpec SpecOf(const Value& value) const {
    const int64_t n = value.cols;
    const auto share = [&](double ratio) {
      return std::max<int64_t>(1, std::llround(ratio * static_cast<double>(n)));
    };
    ProjectionSpec spec = {
        .cols = n, .seed = options_.seed, .index = static_cast<uint32_t>(count_)};
    if (options_.method == LowRankMethod::kCompact) {
      spec.rank = options_.rank.value_or(share(options_.ratio()));
      spec.orthonormal = options_.orthonormal;
    } else {
      spec.principal = options_.rank ? *options_.rank / 2 : share(options_.ratio() / 2);
      spec.rank = options_.rank.value_or(2 * spec.principal);
      spec.orthonormal = true;
      spec.full_moments = options_.method == LowRankMethod::kPrac;
    }
    CheckRank(spec, value);
    return spec;
  }

  void CheckRank(const ProjectionSpec& spec, const Value& value) const {
    const char* flag = options_.rank ? "--rank" : "--rank-ratio: a rank of";
    if (spec.rank > value.cols) {
      throw UserError(ExitCode::kUsage,
                      "{} {} is more than the {} columns of {}, which holds everything; use less",
                      flag, spec.rank, value.cols, value.name);
    }
    // Random directions that all but fill what there is have no well-conditioned basis.
    const auto left = static_cast<double>(spec.cols - spec.principal);
    if (spec.stored() && static_cast<double>(spec.random()) > 0.9 * left) {
      throw UserError(ExitCode::kUsage,
                      "{} {} of the {} columns of {} leaves no room for orthogonal random "
                      "directions; use less, or --method compact",
                      flag, spec.rank, value.cols, value.name);
    }
  }

  // Whether some backward reads input `i` of the node.
  static bool ReadsInput(const Node& node, int i) {
    const std::vector<int> reads = node.op->backward_reads().inputs;
    return std::ranges::find(reads, i) != reads.end();
  }

  bool Projectable(ValueId v) const {
    const Value& value = graph_.values[v];
    const Node& producer = graph_.nodes[value.producer];
    for (const int o : producer.op->backward_reads().outputs) {
      if (producer.outputs[o] == v) return false;
    }
    bool read = false;
    for (const NodeId n : value.consumers) {
      const Node& node = graph_.nodes[n];
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] != v || !ReadsInput(node, static_cast<int>(i))) continue;
        if (i != 0 || !node.op->WithProjectedInput(1) || param_uses_[node.params[0]] != 1) {
          return false;
        }
        read = true;
      }
    }
    return read;
  }

  // Whether P and the gradient together are smaller than the weights.
  bool Saves(ValueId v, int64_t rank) const {
    const int64_t n = graph_.values[v].cols;
    int64_t m = 0;
    for (const NodeId c : graph_.values[v].consumers) {
      const Node& node = graph_.nodes[c];
      if (node.inputs[0] == v && ReadsInput(node, 0)) m += graph_.params[node.params[0]].rows;
    }
    return rank * (n + m) < n * m;
  }

  const Graph& graph_;
  const LowRankOptions& options_;
  ComputeType compute_;
  GraphBuilder builder_;
  std::vector<Param> params_;
  std::vector<int> param_uses_;
  // By value of the old graph: the new value; its projection or -1.
  std::vector<ValueId> mapped_;
  std::vector<int> projected_;
  int count_ = 0;
  // By projection.
  std::vector<ProjectionSpec> specs_;
  std::vector<ValueId> z_;
};

}  // namespace

LowRankMethod ParseLowRankMethod(const std::string& text) {
  if (text == "adamw") return LowRankMethod::kNone;
  if (text == "compact") return LowRankMethod::kCompact;
  if (text == "prac") return LowRankMethod::kPrac;
  if (text == "prac-lowrank") return LowRankMethod::kPracLowRank;
  throw UserError(ExitCode::kUsage,
                  "--method: '{}' is unknown; use adamw, compact, prac or prac-lowrank", text);
}

std::string ToText(LowRankMethod method) {
  switch (method) {
    case LowRankMethod::kNone:
      return "adamw";
    case LowRankMethod::kCompact:
      return "compact";
    case LowRankMethod::kPrac:
      return "prac";
    case LowRankMethod::kPracLowRank:
      return "prac-lowrank";
  }
  return "?";
}

Graph ApplyLowRank(const Graph& graph, const LowRankOptions& options, ComputeType compute) {
  return LowRankPass(graph, options, compute).Run();
}

}  // namespace haversack
