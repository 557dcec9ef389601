#include "train/low_rank_report.h"

#include <algorithm>
#include <cstdlib>

#include "base/bytes.h"
#include "exec/model_state.h"

namespace haversack {
namespace {

// Kinds of projected values in the order of the graph, with columns, rank, and how many there are.
struct Kind {
  std::string name;
  ProjectionSpec spec;
  int count = 0;
};

std::vector<Kind> KindsOf(const Graph& graph) {
  std::vector<Kind> kinds;
  for (const ProjectedValue& projected : graph.projections) {
    const std::string name(graph.values[projected.x].kind());
    const auto found = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const Kind& kind) { return kind.name == name; });
    if (found == kinds.end()) {
      kinds.push_back({.name = name, .spec = projected.spec, .count = 1});
    } else {
      found->count += 1;
    }
  }
  return kinds;
}

std::string Signed(int64_t bytes) {
  return (bytes < 0 ? "-" : "") + FormatBytes(static_cast<uint64_t>(std::abs(bytes)));
}

}  // namespace

LowRankSavings SavingsOf(const Graph& graph, const Plan& plan, const TrainOptions& options) {
  Graph full = graph;
  for (Param& param : full.params) param.projection = -1;
  full.projections.clear();
  const ParamLayout before(full), after(graph);
  const MomentLayout moments_before(full, options.moments), moments_after(graph, options.moments);
  LowRankSavings savings = {.moments = 2 * (moments_before.bytes() - moments_after.bytes()),
                            .projections = -after.projection_bytes()};
  if (!options.fused_update) savings.gradients = before.grad_bytes() - after.grad_bytes();
  for (const ProjectedValue& projected : graph.projections) {
    if (plan.actions[projected.z].kind == Action::Kind::kRecompute) continue;
    savings.activations -= graph.values[projected.z].bytes(plan.micro_batch * options.seq);
  }
  return savings;
}

std::vector<std::string> DescribeLowRank(const Graph& graph, const Plan& plan,
                                         const TrainOptions& options) {
  if (graph.projections.empty()) return {};
  std::string ranks;
  for (const Kind& kind : KindsOf(graph)) {
    ranks += fmt::format("{}{} x {} {} -> {}", ranks.empty() ? "" : ", ", kind.count, kind.name,
                         kind.spec.cols, kind.spec.rank);
    if (kind.spec.principal > 0) ranks += fmt::format(" ({} principal)", kind.spec.principal);
  }
  const ProjectionOptions projections = options.projections();
  const bool full_moments = graph.projections[0].spec.full_moments;
  const LowRankSavings savings = SavingsOf(graph, plan, options);
  return {fmt::format("method {}: {}", ToText(options.low_rank.method), ranks),
          fmt::format("  new projections every {} steps, moments {}, rate of projected weights {} "
                      "lr",
                      projections.refresh,
                      full_moments ? "in full" : "low-rank, " + ToText(projections.moments),
                      full_moments ? 1 : projections.scale),
          fmt::format("  saves {} of gradients, {} of moments, {} of activations; projections "
                      "take {}",
                      Signed(savings.gradients), Signed(savings.moments),
                      Signed(savings.activations), Signed(-savings.projections))};
}

nlohmann::json LowRankToJson(const Graph& graph, const Plan& plan, const TrainOptions& options) {
  nlohmann::json ranks = nlohmann::json::object();
  for (const Kind& kind : KindsOf(graph)) {
    ranks[kind.name] = {{"columns", kind.spec.cols},
                        {"rank", kind.spec.rank},
                        {"principal", kind.spec.principal},
                        {"values", kind.count}};
  }
  const LowRankSavings savings = SavingsOf(graph, plan, options);
  return {{"method", ToText(options.low_rank.method)},
          {"ranks", ranks},
          {"refresh", options.projections().refresh},
          {"saved_bytes",
           {{"gradients", savings.gradients},
            {"moments", savings.moments},
            {"activations", savings.activations},
            {"projections", savings.projections}}}};
}

}  // namespace haversack
