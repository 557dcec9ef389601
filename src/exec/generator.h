// Next-token logits with a key/value cache.
//
//   Generator generator(graph, layout, state, /*capacity=*/prompt + new_tokens);
//   std::span<const float> logits = generator.Feed(prompt_ids);
//   logits = generator.Feed({&next, 1});
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/executor.h"
#include "exec/model_state.h"
#include "graph/graph.h"
#include "ops/lm_loss.h"

namespace haversack {

class Generator {
 public:
  // `capacity`: tokens that will be fed in all. The weights are in `state`.
  Generator(const Graph& graph, const ParamLayout& layout, const ModelState& state,
            int64_t capacity);

  // Appends `ids` and returns the logits [vocab] that follow the last of them, valid until the next
  // call.
  std::span<const float> Feed(std::span<const int32_t> ids);
  int64_t length() const { return length_; }

 private:
  const Graph& graph_;
  const ParamLayout& layout_;
  ModelState state_;
  int64_t capacity_;
  int64_t length_ = 0;
  const LmLoss* head_ = nullptr;
  std::vector<float> cache_storage_;
  std::vector<KvCache> caches_;  // by node; capacity 0 where there is none
  std::vector<float> logits_;
};

}  // namespace haversack
