#include "kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numbers>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/attention_tile.h"
#include "kernels/gemm.h"

namespace haversack {
namespace {

constexpr float kLog2E = std::numbers::log2e_v<float>;
constexpr float kLn2 = std::numbers::ln2_v<float>;
constexpr int64_t kLine = 64;  // bytes

int64_t Group(const AttentionShape& shape) { return shape.q_heads / shape.kv_heads; }

// How scores are cut. Only the shape decides, since results depend on it; the numbers are measured
// ones.
struct Tiling {
  int64_t q_tokens;  // query tokens of a block, stacked over the group's heads
  int64_t keys;      // key tokens of a block; a multiple of q_tokens
};

// Some 128 to 256 stacked rows amortise the reading of keys and keep MKL near its peak; fewer
// tokens a block waste less on the diagonal.
int64_t QueryTokens(const AttentionShape& shape) {
  int64_t tokens = Group(shape) == 1 ? 128 : 64;
  while (tokens > 1 && tokens * Group(shape) > 256) tokens /= 2;
  return tokens;
}

// Long rows need fewer rescalings and reductions. The backward pass has neither, and two tiles to
// keep in the cache.
Tiling ForwardTiling(const AttentionShape& shape) {
  return {.q_tokens = QueryTokens(shape), .keys = 512};
}
Tiling BackwardTiling(const AttentionShape& shape) {
  return {.q_tokens = QueryTokens(shape), .keys = 128};
}

void CheckArguments(const AttentionShape& shape, const std::byte* scratch) {
  HAVERSACK_CHECK(shape.kv_heads >= 1 && shape.head_dim >= 1 && shape.q_heads >= shape.kv_heads &&
                      shape.q_heads % shape.kv_heads == 0,
                  "[attention] {} query heads, {} key heads of {}", shape.q_heads, shape.kv_heads,
                  shape.head_dim);
  HAVERSACK_CHECK(reinterpret_cast<uintptr_t>(scratch) % kLine == 0,
                  "[attention] scratch is not 64-byte aligned");
}

int64_t LongestSegment(std::span<const int32_t> boundaries) {
  HAVERSACK_CHECK(!boundaries.empty() && boundaries.front() == 0,
                  "[attention] boundaries begin with 0");
  int64_t longest = 0;
  for (size_t i = 1; i < boundaries.size(); ++i) {
    const int64_t length = int64_t{boundaries[i]} - boundaries[i - 1];
    HAVERSACK_CHECK(length >= 0, "[attention] boundary {} is {} after {}", i, boundaries[i],
                    boundaries[i - 1]);
    longest = std::max(longest, length);
  }
  return longest;
}

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
int64_t ScoreStride(int64_t width) { return static_cast<int64_t>(AlignUp(width, 16)) + 16; }

// A block of query tokens of one key/value head, inside its segment.
struct QueryBlock {
  int64_t segment;  // first token of the segment
  int64_t begin;    // of the block, from the segment's first token
  int64_t tokens;
  int64_t kv_head;
  int64_t end() const { return begin + tokens; }
};

// Copies the block's rows, [tokens, group * head_dim] on either side: the group's heads are
// neighbours, so a token's rows are one piece. `from_stride` and `to_stride` are floats between
// tokens.
void CopyRows(const AttentionShape& shape, const QueryBlock& block, const float* from,
              int64_t from_stride, float* to, int64_t to_stride) {
  const size_t bytes = Group(shape) * shape.head_dim * sizeof(float);
  for (int64_t t = 0; t < block.tokens; ++t) {
    std::memcpy(to + t * to_stride, from + t * from_stride, bytes);
  }
}

// A thread's tiles in the forward pass, for at most `rows` rows and `keys` keys.
struct ForwardTiles {
  ForwardTiles(ScratchCutter& cut, int64_t rows, int64_t keys, int64_t dim)
      : stride(ScoreStride(keys)),
        q(cut.Take<float>(rows * dim)),
        out(cut.Take<float>(rows * dim)),
        scores(cut.Take<float>(rows * stride)),
        row_max(cut.Take<float>(rows)),
        row_sum(cut.Take<float>(rows)) {}
  int64_t stride;
  float *q, *out, *scores, *row_max, *row_sum;
};

// Attends `rows` = group * q_tokens stacked queries in tiles.q to keys [begin, end) of one head;
// leaves the unnormalised output and the rows' maxima and sums in the tiles. Query t sees keys up
// to q_begin + t.
void AttendKeys(const AttentionShape& shape, int64_t q_tokens, int64_t q_begin, int64_t begin,
                int64_t end, int64_t keys, const float* k, const float* v,
                const ForwardTiles& tiles) {
  const int64_t dim = shape.head_dim, group = Group(shape), rows = group * q_tokens;
  for (int64_t key = begin; key < end; key += keys) {
    const int64_t width = std::min(keys, end - key);
    const bool first = key == begin;
    Gemm(Transpose::kNo, Transpose::kYes, rows, width, dim, shape.scale * kLog2E, tiles.q, dim,
         k + key * shape.k_stride, shape.k_stride, 0.0f, tiles.scores, tiles.stride);
    OnlineSoftmax({.scores = tiles.scores,
                   .stride = tiles.stride,
                   .tokens = q_tokens,
                   .heads = group,
                   .width = width,
                   .visible = q_begin - key + 1},
                  first, dim, tiles.row_max, tiles.row_sum, tiles.out);
    Gemm(Transpose::kNo, Transpose::kNo, rows, dim, width, 1.0f, tiles.scores, tiles.stride,
         v + key * shape.v_stride, shape.v_stride, first ? 0.0f : 1.0f, tiles.out, dim);
  }
}

void ForwardBlock(const AttentionShape& shape, const QueryBlock& block, int64_t keys,
                  const float* q, const float* k, const float* v, float* out, float* lse,
                  const ForwardTiles& tiles) {
  const int64_t dim = shape.head_dim;
  const int64_t group = Group(shape), token = block.segment + block.begin;
  const int64_t q_column = block.kv_head * group * dim, kv_column = block.kv_head * dim;
  CopyRows(shape, block, q + token * shape.q_stride + q_column, shape.q_stride, tiles.q,
           group * dim);
  AttendKeys(shape, block.tokens, block.begin, 0, block.end(), keys,
             k + block.segment * shape.k_stride + kv_column,
             v + block.segment * shape.v_stride + kv_column, tiles);
  NormalizeRows(block.tokens, group, dim, tiles.row_sum, tiles.out,
                out + token * shape.out_stride + q_column, shape.out_stride);
  for (int64_t t = 0, r = 0; t < block.tokens; ++t) {
    float* to = lse + (token + t) * shape.q_heads + block.kv_head * group;
    for (int64_t head = 0; head < group; ++head, ++r) {
      to[head] = kLn2 * (tiles.row_max[r] + std::log2(tiles.row_sum[r]));
    }
  }
}

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

  // body(block, segment's tokens) for the task's blocks, ascending.
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
                      .begin = begin,
                      .tokens = std::min(q_tokens_, length - begin),
                      .kv_head = KvHead(task)},
           length);
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

}  // namespace

void AttentionForward(const AttentionShape& shape, std::span<const int32_t> boundaries,
                      const float* q, const float* k, const float* v, float* out, float* lse,
                      std::byte* scratch) {
  CheckArguments(shape, scratch);
  const int64_t longest = LongestSegment(boundaries);
  if (longest == 0) return;
  const Tiling tiling = ForwardTiling(shape);
  const ChunkedBlocks blocks(shape, boundaries, tiling.q_tokens);
  const size_t per_thread = AttentionForwardScratch(shape, longest, 1);
  RunTasks(blocks.tasks(), [&](int64_t task, int thread) {
    ScratchCutter cut(scratch + thread * per_thread);
    const ForwardTiles tiles(cut, Group(shape) * std::min(tiling.q_tokens, longest),
                             std::min(tiling.keys, longest), shape.head_dim);
    blocks.ForEach(task, [&](const QueryBlock& block, int64_t) {
      ForwardBlock(shape, block, tiling.keys, q, k, v, out, lse, tiles);
    });
  });
}

size_t AttentionForwardScratch(const AttentionShape& shape, int64_t max_segment_tokens,
                               int threads) {
  const Tiling tiling = ForwardTiling(shape);
  ScratchCutter cut(nullptr);
  ForwardTiles(cut, Group(shape) * std::min(tiling.q_tokens, max_segment_tokens),
               std::min(tiling.keys, max_segment_tokens), shape.head_dim);
  return threads * cut.used();
}

namespace {

// A thread's tiles in the backward pass.
struct BackwardTiles {
  BackwardTiles(ScratchCutter& cut, int64_t rows, int64_t keys, int64_t dim)
      : stride(ScoreStride(keys)),
        q(cut.Take<float>(rows * dim)),
        d_out(cut.Take<float>(rows * dim)),
        d_q(cut.Take<float>(rows * dim)),
        scores(cut.Take<float>(rows * stride)),
        d_scores(cut.Take<float>(rows * stride)),
        row_lse2(cut.Take<float>(rows)),
        row_delta(cut.Take<float>(rows)) {}
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
    ScratchCutter cut(tiles_at + thread * per_thread);
    const BackwardTiles tiles(cut, Group(shape) * std::min(tiling.q_tokens, longest),
                              std::min(tiling.keys, longest), shape.head_dim);
    blocks.ForEach(task, [&](const QueryBlock& block, int64_t length) {
      Progress* behind = block.end() < length ? progress + task - shape.kv_heads : nullptr;
      BackwardBlock(shape, block, tiling.keys, at, tiles, behind, progress + task);
    });
  });
}

size_t AttentionBackwardScratch(const AttentionShape& shape, int64_t tokens,
                                int64_t max_segment_tokens, int threads) {
  const Tiling tiling = BackwardTiling(shape);
  ScratchCutter cut(nullptr);
  BackwardTiles(cut, Group(shape) * std::min(tiling.q_tokens, max_segment_tokens),
                std::min(tiling.keys, max_segment_tokens), shape.head_dim);
  const int64_t chunks = (tokens + tiling.q_tokens - 1) / tiling.q_tokens;
  return chunks * shape.kv_heads * sizeof(Progress) + threads * cut.used();
}

namespace {

// Keys of one task of AttentionDecode.
constexpr int64_t kDecodeKeys = 256;

int64_t DecodeChunks(int64_t length) { return (length + kDecodeKeys - 1) / kDecodeKeys; }

}  // namespace

void AttentionDecode(const AttentionShape& shape, int64_t length, const float* q, const float* k,
                     const float* v, float* out, std::byte* scratch) {
  CheckArguments(shape, scratch);
  const int64_t dim = shape.head_dim, group = Group(shape), chunks = DecodeChunks(length);
  const int64_t keys = std::min(kDecodeKeys, length);
  ScratchCutter sizes(nullptr);
  ForwardTiles(sizes, group, keys, dim);
  // Every chunk's share stays in its own tiles until they are joined.
  const auto tiles_of = [&](int64_t task) {
    ScratchCutter cut(scratch + task * sizes.used());
    return ForwardTiles(cut, group, keys, dim);
  };
  RunTasks(shape.kv_heads * chunks, [&](int64_t task, int) {
    const int64_t head = task / chunks, begin = task % chunks * kDecodeKeys;
    const ForwardTiles tiles = tiles_of(task);
    std::memcpy(tiles.q, q + head * group * dim, group * dim * sizeof(float));
    AttendKeys(shape, 1, length - 1, begin, std::min(length, begin + keys), keys, k + head * dim,
               v + head * dim, tiles);
  });
  for (int64_t row = 0; row < shape.q_heads; ++row) {
    const int64_t first = row / group * chunks, r = row % group;
    float maximum = tiles_of(first).row_max[r], sum = 0;
    for (int64_t c = 1; c < chunks; ++c) {
      maximum = std::max(maximum, tiles_of(first + c).row_max[r]);
    }
    for (int64_t c = 0; c < chunks; ++c) {
      const ForwardTiles tiles = tiles_of(first + c);
      sum += tiles.row_sum[r] * std::exp2(tiles.row_max[r] - maximum);
    }
    float* to = out + row * dim;
    std::fill(to, to + dim, 0.0f);
    for (int64_t c = 0; c < chunks; ++c) {
      const ForwardTiles tiles = tiles_of(first + c);
      const float share = std::exp2(tiles.row_max[r] - maximum) / sum;
      for (int64_t i = 0; i < dim; ++i) to[i] += share * tiles.out[r * dim + i];
    }
  }
}

size_t AttentionDecodeScratch(const AttentionShape& shape, int64_t length) {
  ScratchCutter cut(nullptr);
  ForwardTiles(cut, Group(shape), std::min(kDecodeKeys, length), shape.head_dim);
  return shape.kv_heads * DecodeChunks(length) * cut.used();
}

}  // namespace haversack
