// A plan: for each saved value of a graph what becomes of it between its last use in the forward
// pass and its first use in the backward pass. Pure data; prints, compares and travels as JSON:
//
//   {"name": "mine", "micro_batch": 2, "default": "keep",
//    "values": {"blocks.*.gate_up": "recompute", "blocks.3.qkv": "keep"}}
//
// Patterns match whole value names; `*` stands for one or more characters; later entries win.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace haversack {

struct Action {
  enum class Kind { kKeep, kRecompute, kEncode };
  Kind kind = Kind::kKeep;
  std::string codec;  // of kEncode: "bf16", "int8", ...

  // "keep", "recompute", or the codec's name.
  std::string ToText() const;
  bool operator==(const Action&) const = default;
};

struct Plan {
  std::string name;
  int64_t micro_batch = 1;      // sequences
  std::vector<Action> actions;  // by ValueId; meaningful for saved values only

  bool operator==(const Plan&) const = default;
};

// Keeps every saved value except those that one element-wise pass rebuilds (norm outputs,
// activations).
Plan KeepPlan(const Graph& graph, int64_t micro_batch);

// Keeps each block's input and the few small row statistics; everything else inside a block is
// computed again in the backward pass.
Plan RecomputePlan(const Graph& graph, int64_t micro_batch);

// Whether `action` may be applied to `value`; otherwise the reason, for a message.
std::string WhyIllegal(const Graph& graph, ValueId value, const Action& action);

nlohmann::json PlanToJson(const Graph& graph, const Plan& plan);
// Throws UserError (exit 2) naming `where` and the field: unknown value, unknown action, illegal
// action.
Plan PlanFromJson(const Graph& graph, const nlohmann::json& json, const std::string& where);

}  // namespace haversack
