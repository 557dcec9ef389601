// An operation of the forward pass and everything the rest of Haversack asks of it: forward,
// backward, what its backward reads, its scratch memory and its FLOPs. One op is one file; a
// model's builder (src/models) places it in the graph.
//
// Values are row-major [tokens, cols] f32 buffers. An op never allocates: outputs, gradients and
// scratch are handed to it, 64-byte aligned, at addresses fixed by the schedule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/fused.h"
#include "kernels/matmul.h"

namespace haversack {

// The shape of a micro-batch: `sequences` packed sequences of `seq` tokens.
struct BatchShape {
  int64_t sequences = 1;
  int64_t seq = 1;
  int64_t tokens() const { return sequences * seq; }
  bool operator==(const BatchShape&) const = default;
};

// One micro-batch's integers, and where its loss goes. Not owned.
struct MicroBatch {
  std::span<const int32_t> ids;         // [tokens]
  std::span<const int32_t> targets;     // [tokens], -1: not predicted
  std::span<const int32_t> positions;   // [tokens], restarting with each document segment
  std::span<const int32_t> boundaries;  // segment starts, first 0, last = tokens
  float loss_scale = 1;                 // 1 / valid targets of the whole optimizer step
  double* loss_sum = nullptr;           // += sum over valid targets of -log p(target)
  // Keys of the random numbers that codecs round by: the run's seed, and the index in the order of
  // the data of this micro-batch's first sequence.
  uint64_t seed = 0;
  uint64_t sample = 0;
};

inline constexpr size_t kMaxOperands = 4;

// Keys and values of the tokens seen so far, for generation. One per attention op.
struct KvCache {
  float* keys = nullptr;    // [capacity, kv_cols]
  float* values = nullptr;  // [capacity, kv_cols]
  int64_t length = 0;       // tokens stored before this call
  int64_t capacity = 0;
};

struct OpArgs {
  const MicroBatch* batch = nullptr;
  int64_t tokens = 0;
  // Per operand; null where the schedule says that it is not needed.
  std::array<const float*, kMaxOperands> in{};
  // In place of `in` where that is null and the op `reads_encoded`.
  std::array<std::span<const EncodedColumns>, kMaxOperands> encoded{};
  std::array<float*, kMaxOperands> out{};
  std::array<const float*, kMaxOperands> param{};
  std::array<float*, kMaxOperands> grad_out{};  // may be used as scratch by the backward
  std::array<float*, kMaxOperands> grad_in{};
  std::array<float*, kMaxOperands> grad_param{};
  // Whether a gradient is added to what is there (true) or overwrites it (false).
  std::array<bool, kMaxOperands> accumulate_in{};
  std::array<bool, kMaxOperands> accumulate_param{};
  std::byte* scratch = nullptr;
  // Of an op that computes a projection: what it keeps from epoch to epoch, and where it may work.
  int64_t projection_epoch = 0;
  const float* basis = nullptr;
  float* workspace = nullptr;
};

// One matrix product that an op computes, `count` times: Gemm's sizes and forms.
struct MatrixProduct {
  Transpose ta = Transpose::kNo;
  Transpose tb = Transpose::kNo;
  int64_t m = 0, n = 0, k = 0;
  ComputeType type = ComputeType::kF32;
  int64_t count = 1;

  // Multiply and add counted as two; of one product.
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  bool operator==(const MatrixProduct&) const = default;
};

// What an op's backward reads beside parameters and output gradients.
struct BackwardReads {
  std::vector<int> inputs;
  std::vector<int> outputs;
};

class Op {
 public:
  virtual ~Op() = default;

  virtual std::string_view kind() const = 0;
  // Kind and attributes: ops with equal signatures do equal work on equal token counts.
  virtual std::string signature() const = 0;
  // Columns of each output.
  virtual std::vector<int64_t> output_cols() const = 0;

  virtual BackwardReads backward_reads() const = 0;
  // The input whose gradient is output 0's gradient itself (a residual connection), or -1.
  virtual int residual_input() const { return -1; }
  // The input whose gradient may be written over that input's own saved buffer, or -1.
  virtual int in_place_gradient() const { return -1; }
  // Outputs are rebuilt by one element-wise pass over the inputs: never worth keeping.
  virtual bool cheap() const { return false; }
  // The input that the backward alone reads and that has no gradient, or -1.
  virtual int backward_input() const { return -1; }
  // The op's outputs are read by backwards alone: it runs where they are stored or, where they are
  // recomputed, in the backward pass only. The number of the projection that it computes, or -1.
  virtual int projection() const { return -1; }
  // The op that forms its weight's gradient in the space of a projection of `rank` columns of its
  // input 0, from that projection as one more input; null where its backward needs input 0 itself.
  virtual std::shared_ptr<const Op> WithProjectedInput(int64_t /*rank*/) const { return nullptr; }
  // Whether recompute and backward can read this input encoded, tile by tile, so that the decoded
  // tensor never exists.
  virtual bool reads_encoded(int /*input*/) const { return false; }
  // Scratch of a recompute or backward that reads an input encoded.
  virtual size_t encoded_scratch(const BatchShape&) const { return 0; }
  // Columns [first, second) of an input that the op looks at, of `cols`.
  virtual std::pair<int64_t, int64_t> columns_read(int /*input*/, int64_t cols) const {
    return {0, cols};
  }
  // The columns that the op's stored outputs must have been computed from for its backward to make
  // sense: a log-sum-exp of other queries and keys no longer normalises. Where they are stored in
  // fewer bits than bf16 the op has to run again. `input` -1: none.
  struct SensitiveInput {
    int input = -1;
    int64_t begin = 0, end = 0;
  };
  virtual SensitiveInput sensitive_input() const { return {}; }
  // The op computes a loss: its forward writes its inputs' gradients too, over the inputs
  // themselves.
  virtual bool is_loss() const { return false; }

  virtual size_t forward_scratch(const BatchShape&) const { return 0; }
  virtual size_t backward_scratch(const BatchShape&) const { return 0; }
  // Floating-point operations of forward and backward, multiply and add counted as two.
  virtual double forward_flops(const BatchShape& shape) const = 0;
  virtual double backward_flops(const BatchShape& shape) const { return 2 * forward_flops(shape); }
  // The products that an op's passes consist of: what the machine's rate at them limits. None where
  // moving the operands is the work, or where the op is attention.
  virtual std::vector<MatrixProduct> forward_products(const BatchShape&) const { return {}; }
  virtual std::vector<MatrixProduct> backward_products(const BatchShape&) const { return {}; }

  virtual void Forward(const OpArgs& args) const = 0;
  // Runs the forward again for outputs that were dropped; outputs that were kept (a norm's rstd)
  // hold their values. Bit-identical to Forward.
  virtual void Recompute(const OpArgs& args) const { Forward(args); }
  virtual void Backward(const OpArgs& args) const = 0;
  // Forward of `tokens` new tokens that follow those in `cache`. Only attention looks at the cache.
  virtual void ForwardCached(const OpArgs& args, KvCache* /*cache*/) const { Forward(args); }
  // Columns of the keys (and of the values) that generation must cache for this op; 0 for none.
  virtual int64_t kv_cache_cols() const { return 0; }
  virtual size_t cached_scratch(int64_t /*tokens*/, int64_t /*cached_tokens*/) const { return 0; }
};

}  // namespace haversack
