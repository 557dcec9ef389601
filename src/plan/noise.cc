#include "plan/noise.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "codec/format.h"

namespace haversack {
namespace {

// Relative squared errors of decoded values and shares of V, of one kind of piece in all layers.
double TypicalError(const CodecSpec& codec) {
  if (codec.group == 0) return 2.7e-6;
  return codec.format->name() == "int8" ? 4e-5 : 4e-3;
}

// Gains over all layers together.
struct TypicalGain {
  const char* source;
  double alone, again;
};
constexpr TypicalGain kTypicalGains[] = {
    {"input", 13, 230},  {"qkv.sensitive", 100, 60}, {"qkv", 4, 8},
    {"attn_out", 4, 20}, {"x_mid", 5, 40},           {"gate_up", 7, 7},
};
// Of a source of another family.
constexpr TypicalGain kOtherGain = {"", 20, 230};

}  // namespace

std::string NoiseSource(const Graph& graph, ValueId value, bool sensitive) {
  const Value& v = graph.values[value];
  for (const NodeId n : v.consumers) {
    if (graph.nodes[n].layer >= 0 && graph.nodes[n].layer != v.layer) return "input";
  }
  return fmt::format("{}{}", v.kind(), sensitive ? ".sensitive" : "");
}

std::string ErrorKey(const Value& value, const Piece& piece, const CodecSpec& codec) {
  return fmt::format("{}/{} {}", value.name, piece.name, codec.ToText());
}

ValueId ValueInLayer(const Graph& whole, const Graph& one_block, ValueId value, int layer) {
  if (one_block.values[value].layer < 0) return BlockInput(whole, layer);
  const std::string_view kind = one_block.values[value].kind();
  for (size_t v = 0; v < whole.values.size(); ++v) {
    if (whole.values[v].layer == layer && whole.values[v].kind() == kind)
      return static_cast<int>(v);
  }
  HAVERSACK_CHECK(false, "no {} in layer {}", kind, layer);
}

NoiseTable TypicalNoise(const Graph& whole, const Graph& one_block, const ActionSet& allowed) {
  NoiseTable table;
  for (const OpenValue& open : OpenValues(one_block, allowed)) {
    for (size_t p = 0; p < open.sensitive.size(); ++p) {
      const std::string source = NoiseSource(one_block, open.value, open.sensitive[p]);
      TypicalGain typical = kOtherGain;
      for (const TypicalGain& gain : kTypicalGains) {
        if (source == gain.source) typical = gain;
      }
      const auto parts = static_cast<double>(whole.layers * open.sensitive.size());
      table.gain[source] = typical.alone / parts;
      table.gain[source + ".again"] = typical.again / parts;
    }
    for (int layer = 0; layer < whole.layers; ++layer) {
      const Value& value = whole.values[ValueInLayer(whole, one_block, open.value, layer)];
      for (const Action& action : open.actions) {
        for (size_t p = 0; p < action.codecs.size(); ++p) {
          table.error[ErrorKey(value, value.pieces[p], action.codecs[p])] =
              TypicalError(action.codecs[p]);
        }
      }
    }
  }
  return table;
}

double NoiseShare(const NoiseTable& table, const Graph& whole, const Graph& one_block, int layer,
                  const OpenValue& open, const Action& action, bool again) {
  const Value& value = whole.values[ValueInLayer(whole, one_block, open.value, layer)];
  double share = 0;
  for (size_t p = 0; p < action.codecs.size(); ++p) {
    const std::string source = NoiseSource(one_block, open.value, open.sensitive[p]);
    const auto gain = table.gain.find(source + (again ? ".again" : ""));
    const auto error = table.error.find(ErrorKey(value, value.pieces[p], action.codecs[p]));
    if (gain == table.gain.end() || error == table.error.end()) {
      return std::numeric_limits<double>::infinity();
    }
    share += gain->second * error->second;
  }
  // A value that is not finite has no error worth the name.
  return std::isfinite(share) ? share : std::numeric_limits<double>::infinity();
}

}  // namespace haversack
