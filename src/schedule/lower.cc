#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "schedule/schedule.h"

namespace haversack {
namespace {

// Emits instructions in execution order. A buffer's lifetime is simply the span of the instructions
// that name it, so nothing is ever released by hand.
class Lowering {
 public:
  Lowering(const Graph& graph, const Plan& plan, const BatchShape& shape, ScheduleMode mode)
      : graph_(graph), plan_(plan) {
    schedule_.mode = mode;
    schedule_.shape = shape;
    schedule_.encodings.resize(graph.values.size());
    current_.assign(graph.values.size(), kNoBuffer);
    encoded_.assign(graph.values.size(), kNoBuffer);
    gradient_.assign(graph.values.size(), kNoBuffer);
    param_gradient_.assign(graph.params.size(), kNoBuffer);
    param_written_.assign(graph.params.size(), false);
    CountParamUses();
  }

  Schedule Run() {
    const auto last = static_cast<NodeId>(graph_.nodes.size()) - 1;
    for (NodeId n = 0; n <= last; ++n) EmitForward(n);
    if (schedule_.mode != ScheduleMode::kEvaluate) {
      first_backward_ = static_cast<int>(schedule_.instrs.size());
      for (NodeId n = last - 1; n >= 0; --n) EmitBackward(n);
      MarkKept();
    }
    return std::move(schedule_);
  }

 private:
  bool training() const { return schedule_.mode != ScheduleMode::kEvaluate; }

  void CountParamUses() {
    param_uses_.assign(graph_.params.size(), 0);
    for (const Node& node : graph_.nodes) {
      for (const ParamId p : node.params) ++param_uses_[p];
    }
  }

  BufferId NewBuffer(std::string name, BufferKind kind, int64_t bytes) {
    schedule_.buffers.push_back(
        {.name = std::move(name),
         .kind = kind,
         .bytes = static_cast<int64_t>(AlignUp(static_cast<uint64_t>(bytes), kBufferAlignment))});
    return static_cast<BufferId>(schedule_.buffers.size()) - 1;
  }

  BufferId NewValueBuffer(ValueId v, const char* suffix, BufferKind kind = BufferKind::kValue) {
    const Value& value = graph_.values[v];
    const BufferId id = NewBuffer(value.name + suffix, kind, value.bytes(schedule_.shape.tokens()));
    schedule_.buffers[id].value = v;
    return id;
  }

  BufferId Scratch(size_t bytes, const Node& node) {
    if (bytes == 0) return kNoBuffer;
    return NewBuffer(node.name + ":scratch", BufferKind::kScratch, static_cast<int64_t>(bytes));
  }

  // Appends `instr` and extends the lifetime of every buffer that it names to it.
  void Emit(const Instr& instr) {
    const int index = static_cast<int>(schedule_.instrs.size());
    const auto touch = [&](BufferId id) {
      if (id == kNoBuffer) return;
      Buffer& buffer = schedule_.buffers[id];
      if (buffer.first < 0) buffer.first = index;
      buffer.last = index;
    };
    for (const BufferSlots* slots :
         {&instr.in, &instr.out, &instr.grad_in, &instr.grad_out, &instr.grad_param}) {
      for (const BufferId id : *slots) touch(id);
    }
    touch(instr.scratch);
    schedule_.instrs.push_back(instr);
  }

  void EmitForward(NodeId n) {
    const Node& node = graph_.nodes[n];
    if (node.op->projection() >= 0 && !StoredProjection(node)) return;
    Instr instr{.kind = InstrKind::kForward, .node = n};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (static_cast<int>(i) != node.op->backward_input()) instr.in[i] = current_[node.inputs[i]];
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      instr.out[o] = current_[node.outputs[o]] = NewValueBuffer(node.outputs[o], "");
    }
    instr.scratch = Scratch(node.op->forward_scratch(schedule_.shape), node);
    if (node.op->is_loss() && training()) {
      // The gradient takes over the input's buffer.
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        instr.grad_in[i] = gradient_[node.inputs[i]] = instr.in[i];
      }
      BindParamGradients(node, instr);
    }
    Emit(instr);
    if (node.op->is_loss() && training()) EmitUpdates(node);
    for (const ValueId v : node.inputs) {
      if (graph_.values[v].consumers.back() == n) AfterLastForwardUse(v);
    }
    for (const ValueId v : node.outputs) {
      if (graph_.values[v].consumers.empty()) AfterLastForwardUse(v);
    }
  }

  // What only backwards read is computed in the forward pass where it is stored.
  bool StoredProjection(const Node& node) const {
    return training() && plan_.actions.at(node.outputs[0]).kind != Action::Kind::kRecompute;
  }

  void AfterLastForwardUse(ValueId v) {
    const Value& value = graph_.values[v];
    if (!training() || !value.saved) {
      current_[v] = kNoBuffer;
      return;
    }
    const Action& action = plan_.actions.at(v);
    if (action.kind == Action::Kind::kKeep) return;
    if (action.kind == Action::Kind::kEncode) EmitEncode(v, action);
    current_[v] = kNoBuffer;
  }

  // Columns that are not measured yet are the first ones: sizes and costs do not depend on which.
  static std::vector<int32_t> OutliersOf(const Action& action, size_t piece) {
    if (!action.outliers.empty()) return action.outliers.at(piece);
    std::vector<int32_t> columns(action.codecs[piece].outliers);
    std::iota(columns.begin(), columns.end(), 0);
    return columns;
  }

  void EmitEncode(ValueId v, const Action& action) {
    const Value& value = graph_.values[v];
    HAVERSACK_CHECK(action.codecs.size() == value.pieces.size(), "{}: {} codecs", value.name,
                    action.codecs.size());
    int64_t bytes = 0, first = 0;
    for (size_t p = 0; p < value.pieces.size(); ++p) {
      const int64_t cols = value.pieces[p].cols;
      schedule_.encodings[v].push_back({.codec = action.codecs[p],
                                        .first = first,
                                        .cols = cols,
                                        .offset = bytes,
                                        .outliers = OutliersOf(action, p)});
      first += cols;
      bytes += static_cast<int64_t>(EncodedBytes(action.codecs[p], schedule_.shape.tokens(), cols));
    }
    Instr instr{.kind = InstrKind::kEncode, .value = v};
    instr.in[0] = current_[v];
    instr.out[0] = encoded_[v] = NewBuffer(value.name + ":encoded", BufferKind::kEncoded, bytes);
    schedule_.buffers[encoded_[v]].value = v;
    Emit(instr);
  }

  void EmitDecode(ValueId v) {
    Instr instr{.kind = InstrKind::kDecode, .value = v};
    instr.in[0] = encoded_[v];
    instr.out[0] = current_[v] = NewValueBuffer(v, ":decoded");
    Emit(instr);
  }

  // Makes `v` readable by the next instruction and returns its buffer.
  BufferId Materialise(ValueId v) {
    if (current_[v] == kNoBuffer) {
      if (encoded_[v] != kNoBuffer) {
        EmitDecode(v);
      } else {
        RecomputeNode(graph_.values[v].producer);
      }
    }
    return current_[v];
  }

  // Binds input `i` of a recompute or backward: encoded where the op can read it so and nothing has
  // decoded it.
  void BindInput(const Node& node, int i, Instr& instr) {
    const ValueId v = node.inputs[i];
    if (current_[v] == kNoBuffer && encoded_[v] != kNoBuffer && node.op->reads_encoded(i)) {
      instr.in[i] = encoded_[v];
      instr.encoded_in[i] = v;
    } else {
      instr.in[i] = Materialise(v);
    }
  }

  static bool ReadsEncoded(const Instr& instr) {
    return std::ranges::any_of(instr.encoded_in, [](ValueId v) { return v >= 0; });
  }

  void RecomputeNode(NodeId n) {
    const Node& node = graph_.nodes[n];
    Instr instr{.kind = InstrKind::kRecompute, .node = n};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (static_cast<int>(i) != node.op->backward_input()) {
        BindInput(node, static_cast<int>(i), instr);
      }
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId v = node.outputs[o];
      if (current_[v] == kNoBuffer) current_[v] = NewValueBuffer(v, ":again");
      instr.out[o] = current_[v];
    }
    instr.scratch = Scratch(ReadsEncoded(instr) ? node.op->encoded_scratch(schedule_.shape)
                                                : node.op->forward_scratch(schedule_.shape),
                            node);
    Emit(instr);
    DropCheap(node.inputs);
  }

  // An element-wise rebuild is cheaper to repeat than to hold until its next use.
  void DropCheap(const std::vector<ValueId>& values) {
    for (const ValueId v : values) {
      if (graph_.IsCheap(v) && plan_.actions.at(v).kind == Action::Kind::kRecompute)
        current_[v] = kNoBuffer;
    }
  }

  void EmitBackward(NodeId n) {
    const Node& node = graph_.nodes[n];
    if (node.op->projection() >= 0) return;
    Instr instr{.kind = InstrKind::kBackward, .node = n};
    const BackwardReads reads = node.op->backward_reads();
    for (const int i : reads.inputs) BindInput(node, i, instr);
    for (const int o : reads.outputs) instr.out[o] = Materialise(node.outputs[o]);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (graph_.values[node.outputs[o]].differentiable) {
        instr.grad_out[o] = gradient_[node.outputs[o]];
        HAVERSACK_CHECK(instr.grad_out[o] != kNoBuffer, "no gradient reached {}",
                        graph_.values[node.outputs[o]].name);
      }
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) BindInputGradient(node, i, instr);
    BindParamGradients(node, instr);
    instr.scratch = Scratch(ReadsEncoded(instr) ? node.op->encoded_scratch(schedule_.shape)
                                                : node.op->backward_scratch(schedule_.shape),
                            node);
    Emit(instr);
    EmitUpdates(node);
    for (const int i : reads.inputs) DropCheap({node.inputs[i]});
  }

  void BindInputGradient(const Node& node, size_t i, Instr& instr) {
    const ValueId v = node.inputs[i];
    if (!graph_.values[v].differentiable) return;
    if (static_cast<int>(i) == node.op->residual_input()) {
      HAVERSACK_CHECK(gradient_[v] == kNoBuffer, "{} has an earlier gradient than its residual",
                      graph_.values[v].name);
      gradient_[v] = instr.grad_out[0];
      return;  // the op neither reads nor writes it
    }
    if (gradient_[v] != kNoBuffer) {
      instr.accumulate_in[i] = true;
    } else if (static_cast<int>(i) == node.op->in_place_gradient() && instr.encoded_in[i] < 0 &&
               LastReadOf(v, node)) {
      gradient_[v] = instr.in[i];
      current_[v] = kNoBuffer;
    } else {
      gradient_[v] = NewValueBuffer(v, ":grad", BufferKind::kGradient);
    }
    instr.grad_in[i] = gradient_[v];
  }

  // Whether no backward instruction after this node's own can read `v`: its producer's backward and
  // re-runs of its other consumers come later.
  bool LastReadOf(ValueId v, const Node& node) const {
    const Node& producer = graph_.nodes[graph_.values[v].producer];
    for (const int o : producer.op->backward_reads().outputs) {
      if (producer.outputs[o] == v) return false;
    }
    return graph_.values[v].consumers.size() == 1 &&
           &graph_.nodes[graph_.values[v].consumers[0]] == &node;
  }

  void BindParamGradients(const Node& node, Instr& instr) {
    for (size_t i = 0; i < node.params.size(); ++i) {
      const ParamId p = node.params[i];
      instr.accumulate_param[i] = param_written_[p];
      param_written_[p] = true;
      if (schedule_.mode != ScheduleMode::kFusedUpdate) continue;
      if (param_gradient_[p] == kNoBuffer) {
        param_gradient_[p] =
            NewBuffer(graph_.params[p].name + ":grad", BufferKind::kParamGradient,
                      graph_.params[p].gradient_count() * static_cast<int64_t>(sizeof(float)));
      }
      instr.grad_param[i] = param_gradient_[p];
    }
  }

  void EmitUpdates(const Node& node) {
    for (const ParamId p : node.params) {
      if (--param_uses_[p] > 0 || schedule_.mode != ScheduleMode::kFusedUpdate) continue;
      Instr instr{.kind = InstrKind::kUpdate, .param = p};
      instr.grad_param[0] = param_gradient_[p];
      Emit(instr);
    }
  }

  // Kept: written in the forward pass and read as a value in the backward pass.
  void MarkKept() {
    for (size_t i = first_backward_; i < schedule_.instrs.size(); ++i) {
      const Instr& instr = schedule_.instrs[i];
      for (const BufferSlots* slots : {&instr.in, &instr.out}) {
        for (const BufferId id : *slots) {
          if (id != kNoBuffer && schedule_.buffers[id].first < first_backward_) {
            schedule_.buffers[id].kept = true;
          }
        }
      }
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  Schedule schedule_;
  int first_backward_ = 0;
  // By value: the buffer that holds it now, its encoded form, its gradient.
  std::vector<BufferId> current_, encoded_, gradient_;
  // By parameter.
  std::vector<BufferId> param_gradient_;
  std::vector<bool> param_written_;
  std::vector<int> param_uses_;
};

}  // namespace

Schedule LowerWithoutOffsets(const Graph& graph, const Plan& plan, const BatchShape& shape,
                             ScheduleMode mode) {
  HAVERSACK_CHECK(plan.actions.size() == graph.values.size(), "a plan of another graph");
  return Lowering(graph, plan, shape, mode).Run();
}

Schedule Lower(const Graph& graph, const Plan& plan, const BatchShape& shape, ScheduleMode mode) {
  Schedule schedule = LowerWithoutOffsets(graph, plan, shape, mode);
  AssignOffsets(schedule);
  return schedule;
}

}  // namespace haversack
