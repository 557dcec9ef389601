#include "schedule/schedule.h"

#include <fmt/format.h>

#include <string>

namespace haversack {

std::string_view ToText(BufferKind kind) {
  switch (kind) {
    case BufferKind::kValue:
      return "value";
    case BufferKind::kEncoded:
      return "encoded";
    case BufferKind::kGradient:
      return "gradient";
    case BufferKind::kParamGradient:
      return "parameter gradient";
    case BufferKind::kScratch:
      return "scratch";
  }
  return "?";
}

std::string_view ToText(InstrKind kind) {
  switch (kind) {
    case InstrKind::kForward:
      return "forward";
    case InstrKind::kRecompute:
      return "recompute";
    case InstrKind::kBackward:
      return "backward";
    case InstrKind::kEncode:
      return "encode";
    case InstrKind::kDecode:
      return "decode";
    case InstrKind::kUpdate:
      return "update";
  }
  return "?";
}

std::string Schedule::ToText(const Graph& graph) const {
  std::string text;
  const auto list = [&](const char* label, const BufferSlots& slots) {
    for (const BufferId id : slots) {
      if (id != kNoBuffer)
        text += fmt::format(" {}{}@{}", label, buffers[id].name, buffers[id].offset);
    }
  };
  for (const Instr& instr : instrs) {
    std::string what;
    if (instr.node >= 0) what = graph.nodes[instr.node].name;
    if (instr.value >= 0) what = graph.values[instr.value].name;
    if (instr.param >= 0) what = graph.params[instr.param].name;
    text += fmt::format("{:<10}{:<24}", haversack::ToText(instr.kind), what);
    list("<", instr.in);
    list(">", instr.out);
    list("d<", instr.grad_out);
    list("d>", instr.grad_in);
    list("dw>", instr.grad_param);
    if (instr.scratch != kNoBuffer)
      text += fmt::format(" scratch {}", buffers[instr.scratch].bytes);
    text += '\n';
  }
  return text + fmt::format("arena {} bytes, live {} bytes\n", arena_bytes, live_bytes);
}

}  // namespace haversack
