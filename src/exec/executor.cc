#include "exec/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace haversack {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

EncodedShape ShapeOf(const EncodedPiece& piece, int64_t tokens) {
  return {.codec = piece.codec, .rows = tokens, .cols = piece.cols, .outliers = piece.outliers};
}

}  // namespace

Executor::Executor(const Graph& graph, const ParamLayout& layout, const ModelState& state,
                   std::byte* region, int64_t region_bytes)
    : graph_(graph), layout_(layout), state_(state), region_(region), region_bytes_(region_bytes) {}

float* Executor::Address(const Schedule& schedule, BufferId id) {
  if (id == kNoBuffer) return nullptr;
  const Buffer& buffer = schedule.buffers[id];
  HAVERSACK_CHECK(buffer.offset + buffer.bytes <= region_bytes_,
                  "buffer {} of {} bytes at {} passes the arena's {} bytes", buffer.name,
                  buffer.bytes, buffer.offset, region_bytes_);
  peak_bytes_ = std::max(peak_bytes_, buffer.offset + buffer.bytes);
  return reinterpret_cast<float*>(region_ + buffer.offset);
}

OpArgs Executor::Bind(const Schedule& schedule, const Instr& instr, const MicroBatch& batch,
                      bool accumulate) {
  const Node& node = graph_.nodes[instr.node];
  OpArgs args;
  args.batch = &batch;
  args.tokens = schedule.shape.tokens();
  for (size_t i = 0; i < kMaxOperands; ++i) {
    if (const ValueId v = instr.encoded_in[i]; v >= 0) {
      const auto* data = reinterpret_cast<const std::byte*>(Address(schedule, instr.in[i]));
      encoded_[i].clear();
      for (const EncodedPiece& piece : schedule.encodings[v]) {
        encoded_[i].push_back({.shape = ShapeOf(piece, args.tokens),
                               .data = data + piece.offset,
                               .first = piece.first});
      }
      args.encoded[i] = encoded_[i];
    } else {
      args.in[i] = Address(schedule, instr.in[i]);
    }
    args.out[i] = Address(schedule, instr.out[i]);
    args.grad_in[i] = Address(schedule, instr.grad_in[i]);
    args.grad_out[i] = Address(schedule, instr.grad_out[i]);
    args.accumulate_in[i] = instr.accumulate_in[i];
  }
  const bool wants_gradients = instr.kind == InstrKind::kBackward ||
                               (node.op->is_loss() && schedule.mode != ScheduleMode::kEvaluate);
  for (size_t i = 0; i < node.params.size(); ++i) {
    args.param[i] = state_.weights + layout_.offset[node.params[i]];
    if (!wants_gradients) continue;
    const bool transient = instr.grad_param[i] != kNoBuffer;
    args.grad_param[i] = transient ? Address(schedule, instr.grad_param[i])
                                   : state_.grads + layout_.grad_offset[node.params[i]];
    args.accumulate_param[i] = instr.accumulate_param[i] || (accumulate && !transient);
  }
  args.scratch = reinterpret_cast<std::byte*>(Address(schedule, instr.scratch));
  if (const int projection = node.op->projection(); projection >= 0) {
    args.projection_epoch = projection_epoch_;
    args.basis = state_.basis + layout_.basis_offset[projection];
    args.workspace = state_.workspace;
  }
  return args;
}

void Executor::Poison(const Schedule& schedule, int instr, bool before) {
  for (const Buffer& buffer : schedule.buffers) {
    if (before ? buffer.first == instr : buffer.last == instr) {
      std::memset(region_ + buffer.offset, 0xff, buffer.bytes);
    }
  }
}

void Executor::Execute(const Schedule& schedule, const Instr& instr, const MicroBatch& batch,
                       bool accumulate, const UpdateParam& update) {
  switch (instr.kind) {
    case InstrKind::kForward:
      return graph_.nodes[instr.node].op->Forward(Bind(schedule, instr, batch, accumulate));
    case InstrKind::kRecompute:
      return graph_.nodes[instr.node].op->Recompute(Bind(schedule, instr, batch, accumulate));
    case InstrKind::kBackward:
      return graph_.nodes[instr.node].op->Backward(Bind(schedule, instr, batch, accumulate));
    case InstrKind::kUpdate:
      return update(instr.param, Address(schedule, instr.grad_param[0]));
    case InstrKind::kEncode:
      return Encode(schedule, instr, batch);
    case InstrKind::kDecode:
      return Decode(schedule, instr);
  }
}

void Executor::Encode(const Schedule& schedule, const Instr& instr, const MicroBatch& batch) {
  const float* x = Address(schedule, instr.in[0]);
  auto* out = reinterpret_cast<std::byte*>(Address(schedule, instr.out[0]));
  const std::vector<EncodedPiece>& pieces = schedule.encodings[instr.value];
  for (size_t p = 0; p < pieces.size(); ++p) {
    const RandomKey key = {.seed = batch.seed,
                           .purpose = RandomPurpose::kRounding,
                           .layer = static_cast<uint32_t>(instr.value * kMaxOperands + p),
                           .step = batch.sample};
    haversack::Encode(ShapeOf(pieces[p], schedule.shape.tokens()), x + pieces[p].first,
                      graph_.values[instr.value].cols, key, out + pieces[p].offset);
  }
}

void Executor::Decode(const Schedule& schedule, const Instr& instr) {
  const auto* in = reinterpret_cast<const std::byte*>(Address(schedule, instr.in[0]));
  float* x = Address(schedule, instr.out[0]);
  for (const EncodedPiece& piece : schedule.encodings[instr.value]) {
    haversack::Decode(ShapeOf(piece, schedule.shape.tokens()), in + piece.offset, x + piece.first,
                      graph_.values[instr.value].cols);
  }
}

const float* Executor::RunCached(const Schedule& schedule, const MicroBatch& batch,
                                 std::span<KvCache> caches, std::byte* scratch) {
  HAVERSACK_CHECK(schedule.mode == ScheduleMode::kEvaluate, "a training schedule");
  for (const Instr& instr : schedule.instrs) {
    OpArgs args = Bind(schedule, instr, batch, false);
    const Op& op = *graph_.nodes[instr.node].op;
    if (op.is_loss()) return args.in[0];
    const bool cached = op.kv_cache_cols() > 0;
    if (cached) args.scratch = scratch;
    op.ForwardCached(args, cached ? &caches[instr.node] : nullptr);
  }
  HAVERSACK_CHECK(false, "a schedule without a loss");
}

double Executor::Time(const Schedule& schedule, const Instr& instr, const MicroBatch& batch) {
  const auto start = std::chrono::steady_clock::now();
  Execute(schedule, instr, batch, false, nullptr);
  return SecondsSince(start);
}

void Executor::Refresh(const Schedule& schedule, const Instr& instr,
                       const RefreshProjection& refresh) {
  const bool runs = instr.kind == InstrKind::kForward || instr.kind == InstrKind::kRecompute;
  if (!runs || graph_.nodes[instr.node].op->projection() < 0) return;
  refresh(graph_.nodes[instr.node].op->projection(), Address(schedule, instr.in[0]),
          schedule.shape.tokens());
}

void Executor::Run(const Schedule& schedule, const MicroBatch& batch, bool accumulate,
                   const UpdateParam& update, const RefreshProjection& refresh) {
  HAVERSACK_CHECK(static_cast<int64_t>(batch.ids.size()) == schedule.shape.tokens(),
                  "{} tokens for a schedule of {}", batch.ids.size(), schedule.shape.tokens());
  HAVERSACK_CHECK(schedule.mode != ScheduleMode::kFusedUpdate || !accumulate,
                  "a fused update cannot accumulate");
  for (size_t i = 0; i < schedule.instrs.size(); ++i) {
    const Instr& instr = schedule.instrs[i];
    if (poison_) Poison(schedule, static_cast<int>(i), true);
    const auto start = std::chrono::steady_clock::now();
    if (refresh) Refresh(schedule, instr, refresh);
    Execute(schedule, instr, batch, accumulate, update);
    if (observer_) observer_(schedule, instr, SecondsSince(start));
    if (poison_) Poison(schedule, static_cast<int>(i), false);
  }
}

}  // namespace haversack
