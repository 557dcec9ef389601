#include "schedule/plan.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"

namespace haversack {
namespace {

bool Matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  for (size_t skip = star + 1; skip <= name.size(); ++skip) {
    if (Matches(pattern.substr(star + 1), name.substr(skip))) return true;
  }
  return false;
}

// A block's input: read by a block, made outside it (by the embedding or the block before).
bool IsBlockInput(const Graph& graph, ValueId v) {
  const Value& value = graph.values[v];
  for (const NodeId consumer : value.consumers) {
    if (graph.nodes[consumer].layer >= 0 && graph.nodes[consumer].layer != value.layer) return true;
  }
  return false;
}

// Values made outside the blocks that only the head reads (the last block's output).
bool LeavesBlocks(const Graph& graph, ValueId v) {
  for (const NodeId consumer : graph.values[v].consumers) {
    if (graph.nodes[consumer].layer != graph.values[v].layer) return true;
  }
  return false;
}

Action ActionFromText(const std::string& text, const std::string& where, const std::string& field) {
  if (text == "keep") return {};
  if (text == "recompute") return {.kind = Action::Kind::kRecompute, .codec = {}};
  throw UserError(ExitCode::kUsage, "{}: {}: unknown action '{}'; known are keep, recompute", where,
                  field, text);
}

}  // namespace

std::string Action::ToText() const {
  switch (kind) {
    case Kind::kKeep:
      return "keep";
    case Kind::kRecompute:
      return "recompute";
    case Kind::kEncode:
      return codec;
  }
  return "?";
}

Plan KeepPlan(const Graph& graph, int64_t micro_batch) {
  Plan plan{.name = "keep", .micro_batch = micro_batch, .actions = {}};
  plan.actions.resize(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].saved && graph.IsCheap(static_cast<ValueId>(v))) {
      plan.actions[v].kind = Action::Kind::kRecompute;
    }
  }
  return plan;
}

Plan RecomputePlan(const Graph& graph, int64_t micro_batch) {
  Plan plan = KeepPlan(graph, micro_batch);
  plan.name = "recompute";
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const auto v = static_cast<ValueId>(i);
    const Value& value = graph.values[i];
    if (value.saved && value.layer >= 0 && !LeavesBlocks(graph, v) && !graph.IsRowStatistic(v)) {
      plan.actions[i].kind = Action::Kind::kRecompute;
    }
  }
  return plan;
}

std::string WhyIllegal(const Graph& graph, ValueId v, const Action& action) {
  if (!graph.values[v].saved) return "no backward reads it, so nothing is stored";
  if (action.kind == Action::Kind::kRecompute) {
    if (IsBlockInput(graph, v)) return "a block's input is kept, never recomputed across blocks";
    if (graph.IsRowStatistic(v)) return "row statistics are always kept";
  }
  return "";
}

nlohmann::json PlanToJson(const Graph& graph, const Plan& plan) {
  nlohmann::json values = nlohmann::json::object();
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].saved) values[graph.values[v].name] = plan.actions[v].ToText();
  }
  return {{"name", plan.name}, {"micro_batch", plan.micro_batch}, {"values", values}};
}

Plan PlanFromJson(const Graph& graph, const nlohmann::json& json, const std::string& where) {
  if (!json.is_object()) {
    throw UserError(ExitCode::kUsage, "{}: a plan is a JSON object, this is {}", where,
                    json.type_name());
  }
  Plan plan = KeepPlan(graph, 0);
  plan.name = "file";
  for (const auto& [key, field] : json.items()) {
    if (key == "name" && field.is_string()) {
      plan.name = field.get<std::string>();
    } else if (key == "micro_batch" && field.is_number_integer() && field.get<int64_t>() > 0) {
      plan.micro_batch = field.get<int64_t>();
    } else if (key == "default" && field.is_string()) {
      const Action action = ActionFromText(field.get<std::string>(), where, "default");
      const Plan base =
          action.kind == Action::Kind::kRecompute ? RecomputePlan(graph, 0) : KeepPlan(graph, 0);
      plan.actions = base.actions;
    } else if (key != "values" || !field.is_object()) {
      throw UserError(ExitCode::kUsage,
                      "{}: field '{}' is unknown or of the wrong type; a plan has name, "
                      "micro_batch, default and values",
                      where, key);
    }
  }
  if (!json.contains("values")) return plan;
  for (const auto& [pattern, text] : json["values"].items()) {
    if (!text.is_string()) {
      throw UserError(ExitCode::kUsage, "{}: values.{}: an action is a string", where, pattern);
    }
    const Action action = ActionFromText(text.get<std::string>(), where, "values." + pattern);
    bool matched = false;
    for (size_t i = 0; i < graph.values.size(); ++i) {
      if (!Matches(pattern, graph.values[i].name)) continue;
      const std::string reason = WhyIllegal(graph, static_cast<ValueId>(i), action);
      if (!reason.empty()) {
        throw UserError(ExitCode::kUsage, "{}: values.{}: cannot {} {}: {}", where, pattern,
                        action.ToText(), graph.values[i].name, reason);
      }
      plan.actions[i] = action;
      matched = true;
    }
    if (!matched) {
      throw UserError(ExitCode::kUsage, "{}: values.{}: no value of this model has that name",
                      where, pattern);
    }
  }
  return plan;
}

}  // namespace haversack
