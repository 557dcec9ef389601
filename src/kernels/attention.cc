// Forward pass and decoding. The backward pass is in attention_backward.cc.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/attention_blocks.h"
#include "kernels/attention_tile.h"
#include "kernels/gemm.h"

namespace haversack {
namespace {

using namespace attention;  // NOLINT: this file implements it

// Long rows need fewer rescalings and reductions.
Tiling ForwardTiling(const AttentionShape& shape) {
  return {.q_tokens = QueryTokens(shape), .keys = 512};
}

// A thread's tiles in the forward pass. They are laid out by the length of the segment at hand and
// not of the longest one, since MKL may choose a kernel by the leading dimension.
struct ForwardTiles {
  ForwardTiles(ScratchCutter& cut, const AttentionShape& shape, const Tiling& tiling,
               int64_t length) {
    const int64_t rows = Group(shape) * std::min(tiling.q_tokens, length);
    stride = ScoreStride(std::min(tiling.keys, length));
    q = cut.Take<float>(rows * shape.head_dim);
    out = cut.Take<float>(rows * shape.head_dim);
    scores = cut.Take<float>(rows * stride);
    row_max = cut.Take<float>(rows);
    row_sum = cut.Take<float>(rows);
  }
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
    blocks.ForEach(task, [&](const QueryBlock& block) {
      ScratchCutter cut(scratch + thread * per_thread);
      const ForwardTiles tiles(cut, shape, tiling, block.length);
      ForwardBlock(shape, block, tiling.keys, q, k, v, out, lse, tiles);
    });
  });
}

size_t AttentionForwardScratch(const AttentionShape& shape, int64_t max_segment_tokens,
                               int threads) {
  const Tiling tiling = ForwardTiling(shape);
  ScratchCutter cut(nullptr);
  ForwardTiles(cut, shape, tiling, max_segment_tokens);
  return threads * cut.used();
}

namespace {

// One task of AttentionDecode: a head's group of queries against this many keys.
constexpr Tiling kDecodeTiling{.q_tokens = 1, .keys = 256};

int64_t DecodeChunks(int64_t length) {
  return (length + kDecodeTiling.keys - 1) / kDecodeTiling.keys;
}

// Chunk-wise softmaxes of one row joined: out = sum_c w_c out_c / sum_c w_c row_sum_c, with
// w_c = 2^(row_max_c - their maximum). tiles(c) are chunk c's.
template <typename TilesOf>
void JoinChunks(int64_t dim, int64_t chunks, const TilesOf& tiles, int64_t row, float* out) {
  float maximum = tiles(0).row_max[row], sum = 0;
  for (int64_t c = 1; c < chunks; ++c) maximum = std::max(maximum, tiles(c).row_max[row]);
  std::fill(out, out + dim, 0.0f);
  for (int64_t c = 0; c < chunks; ++c) {
    const ForwardTiles chunk = tiles(c);
    const float weight = std::exp2(chunk.row_max[row] - maximum);
    sum += weight * chunk.row_sum[row];
    for (int64_t i = 0; i < dim; ++i) out[i] += weight * chunk.out[row * dim + i];
  }
  for (int64_t i = 0; i < dim; ++i) out[i] /= sum;
}

}  // namespace

void AttentionDecode(const AttentionShape& shape, int64_t length, const float* q, const float* k,
                     const float* v, float* out, std::byte* scratch) {
  CheckArguments(shape, scratch);
  HAVERSACK_CHECK(length >= 1, "[attention] length {}", length);
  const int64_t dim = shape.head_dim, group = Group(shape), chunks = DecodeChunks(length);
  const int64_t keys = kDecodeTiling.keys;
  ScratchCutter sizes(nullptr);
  ForwardTiles(sizes, shape, kDecodeTiling, length);
  // Every chunk's share stays in its own tiles until they are joined.
  const auto tiles_of = [&](int64_t task) {
    ScratchCutter cut(scratch + task * sizes.used());
    return ForwardTiles(cut, shape, kDecodeTiling, length);
  };
  RunTasks(shape.kv_heads * chunks, [&](int64_t task, int) {
    const int64_t head = task / chunks, begin = task % chunks * keys;
    const ForwardTiles tiles = tiles_of(task);
    std::memcpy(tiles.q, q + head * group * dim, group * dim * sizeof(float));
    AttendKeys(shape, 1, length - 1, begin, std::min(length, begin + keys), keys, k + head * dim,
               v + head * dim, tiles);
  });
  for (int64_t head = 0; head < shape.q_heads; ++head) {
    const auto chunk_tiles = [&](int64_t c) { return tiles_of(head / group * chunks + c); };
    JoinChunks(dim, chunks, chunk_tiles, head % group, out + head * dim);
  }
}

size_t AttentionDecodeScratch(const AttentionShape& shape, int64_t length) {
  ScratchCutter cut(nullptr);
  ForwardTiles(cut, shape, kDecodeTiling, length);
  return shape.kv_heads * DecodeChunks(length) * cut.used();
}

}  // namespace haversack
