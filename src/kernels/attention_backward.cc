#include <algorithm>
#include <atomic>
#include <thread>

#include "kernels/attention.h"
#include "kernels/attention_blocks.h"
#include "kernels/attention_tile.h"
#include "kernels/gemm.h"

namespace haversack {
namespace {

using namespace attention;  // NOLINT: this file implements it

// Shorter rows of keys than in the forward pass: two tiles of scores share the cache.
Tiling BackwardTiling(const AttentionShape& shape) {
  return {.q_tokens = QueryTokens(shape), .keys = 128};
}

// A thread's tiles in the backward pass, laid out as those above.
struct BackwardTiles {
  BackwardTiles(ScratchCutter& cut, const AttentionShape& shape, const Tiling& tiling,
                int64_t length) {
    const int64_t rows = Group(shape) * std::min(tiling.q_tokens, length);
    stride = ScoreStride(std::min(tiling.keys, length));
    q = cut.Take<float>(rows * shape.head_dim);
    d_out = cut.Take<float>(rows * shape.head_dim);
    d_q = cut.Take<float>(rows * shape.head_dim);
    scores = cut.Take<float>(rows * stride);
    d_scores = cut.Take<float>(rows * stride);
    row_lse2 = cut.Take<float>(rows);
    row_delta = cut.Take<float>(rows);
  }
  int64_t stride;
  float *q, *d_out, *d_q, *scores, *d_scores, *row_lse2, *row_delta;
};

// How far a (chunk, kv head) has come: every key token before it, counted over the micro-batch, has
// this chunk's share of d_k and d_v. One a cache line.
struct alignas(kLine) Progress {
  int32_t token;

  void Publish(int64_t value) {
    std::atomic_ref<int32_t>(token).store(static_cast<int32_t>(value), std::memory_order_release);
  }
  void WaitFor(int64_t value) {
    const std::atomic_ref<int32_t> now(token);
    for (int spins = 0; now.load(std::memory_order_acquire) < value; ++spins) {
      if (spins > 1000) std::this_thread::yield();
    }
  }
};

struct BackwardPointers {
  const float *q, *k, *v, *out, *lse, *d_out;
  float *d_q, *d_k, *d_v;
};

// Stacks the block's rows and computes row_delta = d_out . out, the softmax's inner product.
void PrepareBackward(const AttentionShape& shape, const QueryBlock& block,
                     const BackwardPointers& at, const BackwardTiles& tiles) {
  const int64_t dim = shape.head_dim, group = Group(shape), token = block.segment + block.begin;
  const int64_t column = block.kv_head * group * dim;
  const int64_t out_at = token * shape.out_stride + column;
  CopyRows(shape, block, at.q + token * shape.q_stride + column, shape.q_stride, tiles.q,
           group * dim);
  CopyRows(shape, block, at.d_out + out_at, shape.out_stride, tiles.d_out, group * dim);
  RowDots(block.tokens, group, dim, tiles.d_out, at.out + out_at, shape.out_stride,
          tiles.row_delta);
  for (int64_t t = 0, r = 0; t < block.tokens; ++t) {
    const float* lse = at.lse + (token + t) * shape.q_heads + block.kv_head * group;
    for (int64_t head = 0; head < group; ++head, ++r) tiles.row_lse2[r] = kLog2E * lse[head];
  }
}

// d_q of one query block, and the block's shares of d_k and d_v added to memory. The shares of a
// key token are added in descending order of query blocks, which makes the sum the same on any
// number of threads: `behind` is the progress of the chunk that holds the segment's next block,
// null for the last block, which writes d_k and d_v rather than adding to them.
void BackwardBlock(const AttentionShape& shape, const QueryBlock& block, int64_t keys,
                   const BackwardPointers& at, const BackwardTiles& tiles, Progress* behind,
                   Progress* own) {
  const int64_t dim = shape.head_dim, group = Group(shape), rows = group * block.tokens;
  const int64_t column = block.kv_head * dim;
  PrepareBackward(shape, block, at, tiles);
  for (int64_t key = 0; key < block.end(); key += keys) {
    const int64_t width = std::min(keys, block.end() - key);
    const int64_t token = block.segment + key;
    const float* k = at.k + token * shape.k_stride + column;
    const float* v = at.v + token * shape.v_stride + column;
    Gemm(Transpose::kNo, Transpose::kYes, rows, width, dim, shape.scale * kLog2E, tiles.q, dim, k,
         shape.k_stride, 0.0f, tiles.scores, tiles.stride);
    Gemm(Transpose::kNo, Transpose::kYes, rows, width, dim, 1.0f, tiles.d_out, dim, v,
         shape.v_stride, 0.0f, tiles.d_scores, tiles.stride);
    SoftmaxGradient({.scores = tiles.scores,
                     .stride = tiles.stride,
                     .tokens = block.tokens,
                     .heads = group,
                     .width = width,
                     .visible = block.begin - key + 1},
                    tiles.row_lse2, tiles.row_delta, tiles.d_scores);
    Gemm(Transpose::kNo, Transpose::kNo, rows, dim, width, shape.scale, tiles.d_scores,
         tiles.stride, k, shape.k_stride, key == 0 ? 0.0f : 1.0f, tiles.d_q, dim);
    if (behind) behind->WaitFor(token + width);
    const float beta = behind ? 1.0f : 0.0f;
    Gemm(Transpose::kYes, Transpose::kNo, width, dim, rows, 1.0f, tiles.scores, tiles.stride,
         tiles.d_out, dim, beta, at.d_v + token * shape.v_stride + column, shape.v_stride);
    Gemm(Transpose::kYes, Transpose::kNo, width, dim, rows, shape.scale, tiles.d_scores,
         tiles.stride, tiles.q, dim, beta, at.d_k + token * shape.k_stride + column,
         shape.k_stride);
    own->Publish(token + width);
  }
  const int64_t q_at = (block.segment + block.begin) * shape.q_stride + group * column;
  CopyRows(shape, block, tiles.d_q, group * dim, at.d_q + q_at, shape.q_stride);
}

}  // namespace

void AttentionBackward(const AttentionShape& shape, std::span<const int32_t> boundaries,
                       const float* q, const float* k, const float* v, const float* out,
                       const float* lse, const float* d_out, float* d_q, float* d_k, float* d_v,
                       std::byte* scratch) {
  CheckArguments(shape, scratch);
  const int64_t longest = LongestSegment(boundaries);
  if (longest == 0) return;
  const Tiling tiling = BackwardTiling(shape);
  const ChunkedBlocks blocks(shape, boundaries, tiling.q_tokens);
  const BackwardPointers at{q, k, v, out, lse, d_out, d_q, d_k, d_v};
  ScratchCutter shared(scratch);
  Progress* progress = shared.Take<Progress>(blocks.tasks());  // [task]
  for (int64_t i = 0; i < blocks.tasks(); ++i) progress[i].Publish(0);
  std::byte* tiles_at = scratch + shared.used();
  const size_t per_thread = AttentionBackwardScratch(shape, 0, longest, 1);
  // A task waits only for tasks handed out before it, so it never waits for one that has no thread.
  RunTasks(blocks.tasks(), [&](int64_t task, int thread) {
    blocks.ForEach(task, [&](const QueryBlock& block) {
      ScratchCutter cut(tiles_at + thread * per_thread);
      const BackwardTiles tiles(cut, shape, tiling, block.length);
      Progress* behind = block.end() < block.length ? progress + task - shape.kv_heads : nullptr;
      BackwardBlock(shape, block, tiling.keys, at, tiles, behind, progress + task);
    });
  });
}

size_t AttentionBackwardScratch(const AttentionShape& shape, int64_t tokens,
                                int64_t max_segment_tokens, int threads) {
  const Tiling tiling = BackwardTiling(shape);
  ScratchCutter cut(nullptr);
  BackwardTiles(cut, shape, tiling, max_segment_tokens);
  const int64_t chunks = (tokens + tiling.q_tokens - 1) / tiling.q_tokens;
  return chunks * shape.kv_heads * sizeof(Progress) + threads * cut.used();
}

}  // namespace haversack
