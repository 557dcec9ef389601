// A plan: for each saved value of a graph what becomes of it between its last use in the forward
// pass and its first use in the backward pass. Pure data; prints, compares and travels as JSON:
//
//   {"name": "mine", "micro_batch": 2, "default": "keep",
//    "values": {"blocks.*.gate_up": "recompute", "blocks.3.qkv": "bf16,bf16,int8",
//               "blocks.3.x_mid": "int4/32+o2"},
//    "outliers": {"blocks.3.x_mid": [[17, 401]]}}
//
// Patterns match whole value names; `*` stands for one or more characters; later entries win. A
// codec (codec/codec.h) is given once, or once for each piece that the value packs. Outlier
// columns, a list for each piece, are measured where they are not given.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "graph/graph.h"

namespace haversack {

struct Action {
  enum class Kind { kKeep, kRecompute, kEncode };
  Kind kind = Kind::kKeep;
  // Of kEncode, for each piece that the value packs.
  std::vector<CodecSpec> codecs;
  // By piece, the columns that its codec holds in bf16; empty until they are measured.
  std::vector<std::vector<int32_t>> outliers;

  static Action Recompute() { return {.kind = Kind::kRecompute, .codecs = {}, .outliers = {}}; }
  static Action Encode(std::vector<CodecSpec> codecs) {
    return {.kind = Kind::kEncode, .codecs = std::move(codecs), .outliers = {}};
  }

  // "keep", "recompute", or the codecs: one where all pieces have the same.
  std::string ToText() const;
  bool operator==(const Action&) const = default;
};

// "keep", "recompute" or codecs for `value`. Throws UserError (exit 2) naming `where`.
Action ParseAction(const Value& value, std::string_view text, const std::string& where);

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

// What the backward pass gets to read in place of a value.
enum class Fidelity { kExact, kBf16, kCoarse };

// By value and piece: what was stored, or for a value that is computed again the worst of what it
// is computed from.
std::vector<std::vector<Fidelity>> FidelityOf(const Graph& graph, const Plan& plan);

// Whether the actions go together; otherwise the reason, for a message: an op with a sensitive
// input that is coarse must run again.
std::string WhyInconsistent(const Graph& graph, const Plan& plan);

bool EncodesAny(const Plan& plan);

nlohmann::json PlanToJson(const Graph& graph, const Plan& plan);
// Throws UserError (exit 2) naming `where` and the field: unknown value, unknown action, illegal
// action, actions that do not go together.
Plan PlanFromJson(const Graph& graph, const nlohmann::json& json, const std::string& where);

}  // namespace haversack
