// The schedule: the flat list of instructions that one micro-batch executes, and the buffers they
// touch, each with its address in the arena. The simulator and the executor walk this same list.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "ops/op.h"
#include "schedule/plan.h"

namespace haversack {

using BufferId = int;
inline constexpr BufferId kNoBuffer = -1;

enum class BufferKind { kValue, kEncoded, kGradient, kParamGradient, kScratch };
std::string_view ToText(BufferKind kind);

struct Buffer {
  std::string name;
  BufferKind kind = BufferKind::kValue;
  ValueId value = -1;  // whose data, encoded data or gradient it holds, if of a value
  int64_t bytes = 0;
  int64_t offset = -1;  // in the arena's schedule region, a multiple of kBufferAlignment
  // Live from the start of instruction `first` to the end of instruction `last`.
  int first = -1;
  int last = -1;
  // Read by the backward pass after the forward pass is over: a kept value.
  bool kept = false;
};

inline constexpr int64_t kBufferAlignment = 64;

enum class InstrKind {
  kForward,    // run the node's op; for the loss, with its backward
  kRecompute,  // run it again for outputs that were dropped
  kBackward,
  kEncode,  // `value`: in[0] -> out[0]
  kDecode,  // likewise
  kUpdate,  // optimizer step of `param` with the gradient in_param: fused update only
};
std::string_view ToText(InstrKind kind);

using BufferSlots = std::array<BufferId, kMaxOperands>;
inline constexpr BufferSlots kNoSlots = {kNoBuffer, kNoBuffer, kNoBuffer, kNoBuffer};

struct Instr {
  InstrKind kind = InstrKind::kForward;
  NodeId node = -1;    // kForward, kRecompute, kBackward
  ValueId value = -1;  // kEncode, kDecode
  ParamId param = -1;  // kUpdate
  BufferSlots in = kNoSlots;
  // Values whose encoded form the buffer of the same slot of `in` holds; -1: it holds plain f32.
  std::array<ValueId, kMaxOperands> encoded_in = {-1, -1, -1, -1};
  BufferSlots out = kNoSlots;
  BufferSlots grad_in = kNoSlots;
  BufferSlots grad_out = kNoSlots;
  // kNoBuffer: the parameter's gradient lives in the model state.
  BufferSlots grad_param = kNoSlots;
  BufferId scratch = kNoBuffer;
  std::array<bool, kMaxOperands> accumulate_in{};
  // Added to what an earlier instruction of this micro-batch wrote.
  std::array<bool, kMaxOperands> accumulate_param{};
};

enum class ScheduleMode {
  kTrain,        // gradients into the model state
  kFusedUpdate,  // each parameter is updated as its gradient arrives; gradients are transient
  kEvaluate,     // forward only
};

// How one piece of a value is stored.
struct EncodedPiece {
  CodecSpec codec;
  int64_t first = 0;  // column of the value
  int64_t cols = 0;
  int64_t offset = 0;  // in the value's encoded buffer, bytes
  std::vector<int32_t> outliers;
};

struct Schedule {
  ScheduleMode mode = ScheduleMode::kTrain;
  BatchShape shape;
  std::vector<Buffer> buffers;
  std::vector<Instr> instrs;
  std::vector<std::vector<EncodedPiece>> encodings;  // by ValueId; empty where it is not encoded
  int64_t arena_bytes = 0;  // end of the highest buffer: what the arena must hold
  int64_t live_bytes = 0;   // largest sum of live buffers: a lower bound of any packing

  std::string ToText(const Graph& graph) const;
};

// Lowers a graph under a plan. Element-wise rebuilds are repeated rather than held; any other
// recomputed value stays until its last use. Offsets are assigned.
Schedule Lower(const Graph& graph, const Plan& plan, const BatchShape& shape, ScheduleMode mode);
// The same before packing: for a planner that weighs many plans by their live bytes.
Schedule LowerWithoutOffsets(const Graph& graph, const Plan& plan, const BatchShape& shape,
                             ScheduleMode mode);

// Assigns an address to every buffer: one after the other, each into the tightest gap among the
// buffers that live at the same time (greedy by size, best fit; Pisarchyk and Lee, arXiv
// 2001.03288). Three orders are tried, by size, by lifetime and by their product, and the tightest
// packing wins. Sets `arena_bytes` and `live_bytes`.
void AssignOffsets(Schedule& schedule);

// Bytes live during each instruction, by buffer kind: the memory timeline.
struct LiveBytes {
  std::array<int64_t, 5> by_kind{};
  int64_t kept = 0;  // part of kValue that waits for the backward pass
  int64_t total = 0;
};
std::vector<LiveBytes> SimulateMemory(const Schedule& schedule);

}  // namespace haversack
