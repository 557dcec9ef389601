#include "schedule/plan.h"

#include <fmt/format.h>

#include <algorithm>
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

// Formats without groups hold each number at its own scale.
bool IsBf16(const CodecSpec& codec) { return codec.group == 0; }

// The worst of the columns that `op` reads of `value`.
Fidelity WorstRead(const Op& op, int input, const Value& value,
                   const std::vector<Fidelity>& pieces) {
  const auto [begin, end] = op.columns_read(input, value.cols);
  Fidelity worst = Fidelity::kExact;
  int64_t col = 0;
  for (size_t p = 0; p < value.pieces.size(); ++p) {
    const int64_t next = col + value.pieces[p].cols;
    if (col < end && begin < next) worst = std::max(worst, pieces[p]);
    col = next;
  }
  return worst;
}

std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string PieceNames(const Value& value) {
  std::string names;
  for (const Piece& piece : value.pieces) names += (names.empty() ? "" : ", ") + piece.name;
  return names;
}

// Columns of one piece's list in "outliers".
std::vector<int32_t> OutliersFromJson(const nlohmann::json& json, const CodecSpec& codec,
                                      int64_t cols, const std::string& where) {
  const auto fail = [&](std::string_view why) {
    throw UserError(ExitCode::kUsage, "{}: {}; codec {} wants {} ascending columns below {}", where,
                    why, codec.ToText(), codec.outliers, cols);
  };
  if (!json.is_array() || static_cast<int>(json.size()) != codec.outliers) {
    fail("not that many columns");
  }
  std::vector<int32_t> columns;
  for (const nlohmann::json& column : json) {
    const bool rises = column.is_number_integer() && column.get<int64_t>() < cols &&
                       column.get<int64_t>() > (columns.empty() ? -1 : columns.back());
    if (!rises) fail("not ascending columns of the value");
    columns.push_back(column.get<int32_t>());
  }
  return columns;
}

void ReadOutliers(const Graph& graph, const nlohmann::json& json, const std::string& where,
                  Plan& plan) {
  for (const auto& [name, lists] : json.items()) {
    const std::string field = fmt::format("{}: outliers.{}", where, name);
    const auto found = std::ranges::find(graph.values, name, &Value::name);
    if (found == graph.values.end()) {
      throw UserError(ExitCode::kUsage, "{}: no value of this model has that name", field);
    }
    Action& action = plan.actions[found - graph.values.begin()];
    if (action.kind != Action::Kind::kEncode || !lists.is_array() ||
        lists.size() != action.codecs.size()) {
      throw UserError(ExitCode::kUsage, "{}: one list for each of {}, and a codec in values", field,
                      PieceNames(*found));
    }
    action.outliers.clear();
    for (size_t p = 0; p < lists.size(); ++p) {
      action.outliers.push_back(
          OutliersFromJson(lists[p], action.codecs[p], found->pieces[p].cols, field));
    }
  }
}

}  // namespace

std::string Action::ToText() const {
  switch (kind) {
    case Kind::kKeep:
      return "keep";
    case Kind::kRecompute:
      return "recompute";
    case Kind::kEncode:
      break;
  }
  const bool same = std::ranges::count(codecs, codecs[0]) == std::ssize(codecs);
  std::string text;
  for (const CodecSpec& codec : std::span(codecs).first(same ? 1 : codecs.size())) {
    text += (text.empty() ? "" : ",") + codec.ToText();
  }
  return text;
}

Action ParseAction(const Value& value, std::string_view text, const std::string& where) {
  if (text == "keep") return {};
  if (text == "recompute") return Action::Recompute();
  const std::vector<std::string_view> parts = SplitAt(text, ',');
  if (parts.size() != 1 && parts.size() != value.pieces.size()) {
    throw UserError(ExitCode::kUsage, "{}: '{}': {} codecs for {} ({}); give one, or one each",
                    where, text, parts.size(), value.name, PieceNames(value));
  }
  Action action = Action::Encode({});
  for (size_t p = 0; p < value.pieces.size(); ++p) {
    const CodecSpec codec = ParseCodec(parts[parts.size() == 1 ? 0 : p], where);
    if (codec.outliers > value.pieces[p].cols) {
      throw UserError(ExitCode::kUsage, "{}: '{}': {} has {} columns", where, text,
                      value.pieces[p].name, value.pieces[p].cols);
    }
    action.codecs.push_back(codec);
  }
  return action;
}

Plan KeepPlan(const Graph& graph, int64_t micro_batch) {
  Plan plan{.name = "keep", .micro_batch = micro_batch, .actions = {}};
  plan.actions.resize(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Op& producer = *graph.nodes[graph.values[v].producer].op;
    // A projection that is not stored is computed once too, in the backward pass.
    const bool free = graph.IsCheap(static_cast<ValueId>(v)) || producer.projection() >= 0;
    if (graph.values[v].saved && free) {
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
  if (action.kind == Action::Kind::kEncode) {
    if (graph.IsRowStatistic(v)) return "row statistics are always kept";
    if (graph.IsCheap(v)) return "one element-wise pass rebuilds it from what is stored";
    if (graph.values[v].layer < 0 && !IsBlockInput(graph, v)) return "no block reads or makes it";
  }
  return "";
}

std::vector<std::vector<Fidelity>> FidelityOf(const Graph& graph, const Plan& plan) {
  std::vector<std::vector<Fidelity>> fidelity(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    const Action& action = plan.actions[v];
    fidelity[v].assign(value.pieces.size(), Fidelity::kExact);
    if (value.saved && action.kind == Action::Kind::kEncode) {
      for (size_t p = 0; p < value.pieces.size(); ++p) {
        fidelity[v][p] = IsBf16(action.codecs[p]) ? Fidelity::kBf16 : Fidelity::kCoarse;
      }
    }
    if (value.saved && action.kind != Action::Kind::kRecompute) continue;
    const Node& producer = graph.nodes[value.producer];
    Fidelity worst = Fidelity::kExact;
    for (size_t i = 0; i < producer.inputs.size(); ++i) {
      const ValueId input = producer.inputs[i];
      worst = std::max(worst, WorstRead(*producer.op, static_cast<int>(i), graph.values[input],
                                        fidelity[input]));
    }
    fidelity[v].assign(value.pieces.size(), worst);
  }
  return fidelity;
}

std::string WhyInconsistent(const Graph& graph, const Plan& plan) {
  const std::vector<std::vector<Fidelity>> fidelity = FidelityOf(graph, plan);
  for (const Node& node : graph.nodes) {
    const Op::SensitiveInput sensitive = node.op->sensitive_input();
    if (sensitive.input < 0) continue;
    const ValueId input = node.inputs[sensitive.input];
    const Value& value = graph.values[input];
    int64_t col = 0;
    for (size_t p = 0; p < value.pieces.size(); ++p) {
      const bool read = col < sensitive.end && sensitive.begin < col + value.pieces[p].cols;
      col += value.pieces[p].cols;
      if (!read || fidelity[input][p] != Fidelity::kCoarse) continue;
      const ValueId output = node.outputs[0];
      if (!graph.values[output].saved || plan.actions[output].kind == Action::Kind::kRecompute) {
        continue;
      }
      return fmt::format("{} of {} comes back in less than bf16, so {} must be recompute, not {}",
                         value.pieces[p].name, value.name, graph.values[output].name,
                         plan.actions[output].ToText());
    }
  }
  return "";
}

bool EncodesAny(const Plan& plan) {
  return std::ranges::any_of(
      plan.actions, [](const Action& action) { return action.kind == Action::Kind::kEncode; });
}

nlohmann::json PlanToJson(const Graph& graph, const Plan& plan) {
  nlohmann::json values = nlohmann::json::object();
  nlohmann::json outliers = nlohmann::json::object();
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (!graph.values[v].saved) continue;
    values[graph.values[v].name] = plan.actions[v].ToText();
    if (!plan.actions[v].outliers.empty()) {
      outliers[graph.values[v].name] = plan.actions[v].outliers;
    }
  }
  nlohmann::json json = {
      {"name", plan.name}, {"micro_batch", plan.micro_batch}, {"values", std::move(values)}};
  if (!outliers.empty()) json["outliers"] = std::move(outliers);
  return json;
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
      const std::string base = field.get<std::string>();
      if (base != "keep" && base != "recompute") {
        throw UserError(ExitCode::kUsage, "{}: default: '{}' is neither keep nor recompute", where,
                        base);
      }
      plan.actions = (base == "keep" ? KeepPlan(graph, 0) : RecomputePlan(graph, 0)).actions;
    } else if ((key != "values" && key != "outliers") || !field.is_object()) {
      throw UserError(ExitCode::kUsage,
                      "{}: field '{}' is unknown or of the wrong type; a plan has name, "
                      "micro_batch, default, values and outliers",
                      where, key);
    }
  }
  const nlohmann::json values = json.value("values", nlohmann::json::object());
  for (const auto& [pattern, text] : values.items()) {
    if (!text.is_string()) {
      throw UserError(ExitCode::kUsage, "{}: values.{}: an action is a string", where, pattern);
    }
    bool matched = false;
    for (size_t i = 0; i < graph.values.size(); ++i) {
      if (!Matches(pattern, graph.values[i].name)) continue;
      const Action action = ParseAction(graph.values[i], text.get<std::string>(),
                                        fmt::format("{}: values.{}", where, pattern));
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
  ReadOutliers(graph, json.value("outliers", nlohmann::json::object()), where, plan);
  if (const std::string reason = WhyInconsistent(graph, plan); !reason.empty()) {
    throw UserError(ExitCode::kUsage, "{}: {}", where, reason);
  }
  return plan;
}

}  // namespace haversack
