// Walks a schedule: the only code that runs instructions.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "exec/model_state.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace haversack {

class Executor {
 public:
  // `region` holds the schedules' buffers: `region_bytes` at least each schedule's `arena_bytes`.
  Executor(const Graph& graph, const ParamLayout& layout, const ModelState& state,
           std::byte* region, int64_t region_bytes);

  // The optimizer step of one parameter, under a fused update.
  using UpdateParam = std::function<void(ParamId param, float* grad)>;
  // Moves a projection to the present epoch, given the value x [tokens, cols] that it projects.
  using RefreshProjection = std::function<void(int projection, const float* x, int64_t tokens)>;
  // Called after each instruction with the seconds that it took.
  using Observer = std::function<void(const Schedule&, const Instr&, double seconds)>;

  // Runs one micro-batch. `accumulate`: gradients are added to those of the micro-batches before.
  // `refresh`, where given, is called before each projection.
  void Run(const Schedule& schedule, const MicroBatch& batch, bool accumulate,
           const UpdateParam& update = nullptr, const RefreshProjection& refresh = nullptr);

  // Runs one instruction of `schedule` alone, on whatever its buffers hold, and returns its
  // seconds.
  double Time(const Schedule& schedule, const Instr& instr, const MicroBatch& batch);

  // Forward of new tokens behind those in `caches` (by node); `scratch` serves the ops that have a
  // cache. Returns the loss node's input, [tokens, hidden]; the loss itself is not computed.
  const float* RunCached(const Schedule& schedule, const MicroBatch& batch,
                         std::span<KvCache> caches, std::byte* scratch);

  // The epoch of all projections in what runs from now on.
  void set_projection_epoch(int64_t epoch) { projection_epoch_ = epoch; }
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  // Tests: fills each buffer with NaN before its first and after its last instruction, so that a
  // read outside its lifetime shows.
  void set_poison(bool poison) { poison_ = poison; }
  // The highest byte of the region that any instruction has touched so far.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  float* Address(const Schedule& schedule, BufferId id);
  void Encode(const Schedule& schedule, const Instr& instr, const MicroBatch& batch);
  void Decode(const Schedule& schedule, const Instr& instr);
  OpArgs Bind(const Schedule& schedule, const Instr& instr, const MicroBatch& batch,
              bool accumulate);
  void Execute(const Schedule& schedule, const Instr& instr, const MicroBatch& batch,
               bool accumulate, const UpdateParam& update);
  void Refresh(const Schedule& schedule, const Instr& instr, const RefreshProjection& refresh);
  void Poison(const Schedule& schedule, int instr, bool before);

  const Graph& graph_;
  const ParamLayout& layout_;
  ModelState state_;
  std::byte* region_;
  int64_t region_bytes_;
  int64_t peak_bytes_ = 0;
  int64_t projection_epoch_ = 0;
  bool poison_ = false;
  // Of the instruction that is being run.
  std::array<std::vector<EncodedColumns>, kMaxOperands> encoded_;
  Observer observer_;
};

}  // namespace haversack
