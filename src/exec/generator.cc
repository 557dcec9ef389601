#include "exec/generator.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "exec/arena.h"
#include "schedule/plan.h"

namespace haversack {

Generator::Generator(const Graph& graph, const ParamLayout& layout, const ModelState& state,
                     int64_t capacity)
    : graph_(graph), layout_(layout), state_(state), capacity_(capacity) {
  head_ = dynamic_cast<const LmLoss*>(graph.nodes.back().op.get());
  HAVERSACK_CHECK(head_ != nullptr, "the last node is {}", graph.nodes.back().op->kind());
  logits_.resize(head_->vocab());
  int64_t floats = 0;
  for (const Node& node : graph.nodes) floats += 2 * node.op->kv_cache_cols() * capacity;
  cache_storage_.resize(floats);
  float* next = cache_storage_.data();
  for (const Node& node : graph.nodes) {
    KvCache cache;
    if (const int64_t cols = node.op->kv_cache_cols(); cols > 0) {
      cache = {.keys = next, .values = next + cols * capacity, .length = 0, .capacity = capacity};
      next += 2 * cols * capacity;
    }
    caches_.push_back(cache);
  }
}

std::span<const float> Generator::Feed(std::span<const int32_t> ids) {
  const auto tokens = static_cast<int64_t>(ids.size());
  HAVERSACK_CHECK(tokens > 0 && length_ + tokens <= capacity_, "{} tokens after {} of {}", tokens,
                  length_, capacity_);
  const Schedule schedule =
      Lower(graph_, KeepPlan(graph_, 1), {.sequences = 1, .seq = tokens}, ScheduleMode::kEvaluate);
  size_t scratch_bytes = 0;
  for (const Node& node : graph_.nodes) {
    scratch_bytes = std::max(scratch_bytes, node.op->cached_scratch(tokens, length_));
  }
  Arena arena(schedule.arena_bytes + static_cast<int64_t>(scratch_bytes) + 4096);
  Executor executor(graph_, layout_, state_, arena.Take("schedule", schedule.arena_bytes),
                    schedule.arena_bytes);
  std::byte* scratch = arena.Take("attention", static_cast<int64_t>(scratch_bytes));

  std::vector<int32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(length_));
  const std::array<int32_t, 2> boundaries = {0, static_cast<int32_t>(tokens)};
  const MicroBatch batch = {
      .ids = ids, .targets = {}, .positions = positions, .boundaries = boundaries};
  const float* hidden = executor.RunCached(schedule, batch, caches_, scratch);
  for (KvCache& cache : caches_) cache.length += tokens;
  length_ += tokens;
  const Node& head = graph_.nodes.back();
  const int64_t cols = graph_.values[head.inputs[0]].cols;
  head_->Logits(hidden + (tokens - 1) * cols, 1, state_.weights + layout_.offset[head.params[0]],
                logits_.data());
  return logits_;
}

}  // namespace haversack
