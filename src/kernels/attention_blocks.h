// How attention's forward and backward passes cut their work: blocks of query tokens, scratch,
// tasks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>

#include "base/bytes.h"
#include "base/threads.h"
#include "kernels/attention.h"

namespace haversack::attention {

// Scores are kept in base 2 (attention_tile.h).
inline constexpr float kLog2E = std::numbers::log2e_v<float>;
inline constexpr float kLn2 = std::numbers::ln2_v<float>;

inline constexpr int64_t kLine = 64;  // bytes of a cache line, to which scratch is aligned

// Query heads that share a key/value head.
inline int64_t Group(const AttentionShape& shape) { return shape.q_heads / shape.kv_heads; }

// How scores are cut. Only the shape decides, since results depend on it; the numbers are measured
// ones.
struct Tiling {
  int64_t q_tokens;  // query tokens of a block, stacked over the group's heads
  int64_t keys;      // key tokens of a block; a multiple of q_tokens
};

// The query tokens of a block.
int64_t QueryTokens(const AttentionShape& shape);

// The strides and sizes make sense, scratch is aligned; a bug if not.
void CheckArguments(const AttentionShape& shape, const std::byte* scratch);
int64_t LongestSegment(std::span<const int32_t> boundaries);

// Hands out 64-byte aligned pieces of scratch; with a null base it only adds up their bytes.
class ScratchCutter {
 public:
  explicit ScratchCutter(std::byte* base) : base_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += AlignUp(count * sizeof(T), kLine);
    return piece;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

// Rows of scores begin at multiples of 16 floats, and not at powers of two: those share cache sets.
inline int64_t ScoreStride(int64_t width) { return static_cast<int64_t>(AlignUp(width, 16)) + 16; }

// A block of query tokens of one key/value head, inside its segment.
struct QueryBlock {
  int64_t segment;  // first token of the segment
  int64_t length;   // tokens of the segment
  int64_t begin;    // of the block, from the segment's first token
  int64_t tokens;
  int64_t kv_head;
  int64_t end() const { return begin + tokens; }
};

// Copies the block's rows, [tokens, group * head_dim] on either side: the group's heads are
// neighbours, so a token's rows are one piece. The strides are floats between tokens.
void CopyRows(const AttentionShape& shape, const QueryBlock& block, const float* from,
              int64_t from_stride, float* to, int64_t to_stride);

// Work is handed out as (chunk, kv head): a chunk is q_tokens tokens of the micro-batch and owns
// the query blocks that begin in it, one of a long segment or many tiny ones. Later chunks first,
// since the last blocks of a segment attend to the most keys.
class ChunkedBlocks {
 public:
  ChunkedBlocks(const AttentionShape& shape, std::span<const int32_t> boundaries, int64_t q_tokens)
      : boundaries_(boundaries),
        q_tokens_(q_tokens),
        kv_heads_(shape.kv_heads),
        chunks_((boundaries.back() + q_tokens - 1) / q_tokens) {}

  int64_t tasks() const { return chunks_ * kv_heads_; }
  int64_t Chunk(int64_t task) const { return chunks_ - 1 - task / kv_heads_; }
  int64_t KvHead(int64_t task) const { return task % kv_heads_; }

  // body(block) for the task's blocks, ascending.
  template <typename Body>
  void ForEach(int64_t task, const Body& body) const {
    const int64_t chunk_begin = Chunk(task) * q_tokens_;
    const int64_t chunk_end = std::min<int64_t>(chunk_begin + q_tokens_, boundaries_.back());
    auto it = std::upper_bound(boundaries_.begin(), boundaries_.end(), chunk_begin) - 1;
    for (; *it < chunk_end; ++it) {
      const int64_t segment = *it, length = *(it + 1) - segment;
      // The one multiple of q_tokens, counted from the segment's start, that falls in the chunk.
      const int64_t begin =
          segment >= chunk_begin ? 0 : AlignUpTo(chunk_begin - segment, q_tokens_);
      if (begin >= length) continue;
      body(QueryBlock{.segment = segment,
                      .length = length,
                      .begin = begin,
                      .tokens = std::min(q_tokens_, length - begin),
                      .kv_head = KvHead(task)});
    }
  }

 private:
  static int64_t AlignUpTo(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

  std::span<const int32_t> boundaries_;
  int64_t q_tokens_;
  int64_t kv_heads_;
  int64_t chunks_;
};

// Runs the tasks inside a parallel region even when there is only one, so that Gemm never brings
// its own threads: its rounding may depend on their number.
template <typename Body>
void RunTasks(int64_t tasks, const Body& body) {
  ParallelTasks(std::max<int64_t>(tasks, 2), [&](int64_t task, int thread) {
    if (task < tasks) body(task, thread);
  });
}

}  // namespace haversack::attention
