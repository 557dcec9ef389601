#include "plan/actions.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "codec/format.h"

namespace haversack {
namespace {

constexpr int kGroup4 = 32;  // columns that share a scale and a minimum under 4 bits

bool KnownCodec(std::string_view name) {
  return std::ranges::any_of(CodecFormats(),
                             [&](const CodecFormat* format) { return format->name() == name; });
}

std::string KnownActions() {
  std::string names = "keep, recompute";
  for (const CodecFormat* format : CodecFormats()) {
    names += fmt::format(", {}", format->name());
  }
  return names;
}

// Read by a residual connection.
bool InResidualStream(const Graph& graph, ValueId v) {
  for (const NodeId n : graph.values[v].consumers) {
    const Node& node = graph.nodes[n];
    const int residual = node.op->residual_input();
    if (residual >= 0 && node.inputs[residual] == v) return true;
  }
  return false;
}

CodecSpec CodecFor(const std::string& name, const Piece& piece, bool residual) {
  CodecSpec codec = ParseCodec(name, "codec");
  if (codec.group == 0) return codec;
  const bool four_bits = name == "int4";
  if (four_bits) codec.group = kGroup4;
  if (residual || four_bits) codec.outliers = static_cast<int>((piece.cols + 99) / 100);
  return codec;
}

std::vector<bool> SensitivePieces(const Graph& graph, ValueId v) {
  const Value& value = graph.values[v];
  const CodecSpec fine = ParseCodec("bf16", "codec"), coarse = ParseCodec("int8", "codec");
  std::vector<bool> sensitive;
  for (size_t p = 0; p < value.pieces.size(); ++p) {
    Plan plan = KeepPlan(graph, 1);
    plan.actions[v] = Action::Encode(std::vector<CodecSpec>(value.pieces.size(), fine));
    plan.actions[v].codecs[p] = coarse;
    sensitive.push_back(!WhyInconsistent(graph, plan).empty());
  }
  return sensitive;
}

void AddCodecs(const Graph& graph, const ActionSet& allowed, OpenValue& open) {
  const Value& value = graph.values[open.value];
  const bool residual = InResidualStream(graph, open.value);
  const bool fragile = std::ranges::any_of(open.sensitive, [](bool s) { return s; });
  const bool has_bf16 = std::ranges::count(allowed.codecs, "bf16") > 0;
  const auto add = [&](const std::string& sensitive, const std::string& rest) {
    std::vector<CodecSpec> codecs;
    for (size_t p = 0; p < value.pieces.size(); ++p) {
      codecs.push_back(CodecFor(open.sensitive[p] ? sensitive : rest, value.pieces[p], residual));
    }
    Action action = Action::Encode(std::move(codecs));
    if (!WhyIllegal(graph, open.value, action).empty()) return;
    if (std::ranges::count(open.actions, action) == 0) open.actions.push_back(std::move(action));
  };
  for (const std::string& codec : allowed.codecs) {
    // Four bits of queries and keys are out of the question: the gradient is off by more than its
    // own length.
    if (!fragile || codec != "int4") add(codec, codec);
    if (fragile && has_bf16 && codec != "bf16") add("bf16", codec);
  }
}

}  // namespace

ActionSet ParseActions(std::string_view text, const std::string& where) {
  ActionSet allowed = {.recompute = false, .codecs = {}};
  while (true) {
    const size_t end = text.find(',');
    const std::string name(text.substr(0, end));
    if (name == "recompute") {
      allowed.recompute = true;
    } else if (KnownCodec(name)) {
      if (std::ranges::count(allowed.codecs, name) == 0) allowed.codecs.push_back(name);
    } else if (name != "keep") {
      throw UserError(ExitCode::kUsage, "{}: unknown action '{}'; known are {}", where, name,
                      KnownActions());
    }
    if (end == std::string_view::npos) return allowed;
    text.remove_prefix(end + 1);
  }
}

ValueId BlockInput(const Graph& graph, int layer) {
  for (const Node& node : graph.nodes) {
    if (node.layer != layer) continue;
    for (const ValueId v : node.inputs) {
      if (graph.values[v].layer != layer) return v;
    }
  }
  HAVERSACK_CHECK(false, "no layer {}", layer);
}

std::vector<OpenValue> OpenValues(const Graph& graph, const ActionSet& allowed) {
  std::vector<OpenValue> open;
  const ValueId input = BlockInput(graph, 0);
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const auto v = static_cast<ValueId>(i);
    const Value& value = graph.values[i];
    if ((value.layer < 0 && v != input) || !value.saved || graph.IsCheap(v)) continue;
    if (graph.IsRowStatistic(v)) continue;
    // A projection is made in the backward pass, at no bytes; a plan file may store it.
    if (graph.nodes[value.producer].op->projection() >= 0) continue;
    if (graph.nodes[value.consumers.back()].layer < 0) continue;  // the block's output
    OpenValue open_value = {
        .value = v, .actions = {Action{}}, .sensitive = SensitivePieces(graph, v)};
    if (allowed.recompute && WhyIllegal(graph, v, Action::Recompute()).empty()) {
      open_value.actions.push_back(Action::Recompute());
    }
    AddCodecs(graph, allowed, open_value);
    open.push_back(std::move(open_value));
  }
  return open;
}

}  // namespace haversack
