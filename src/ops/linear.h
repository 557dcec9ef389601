// Linear layers y = x W^T (+ b), weights stored [out, in] as Hugging Face's nn.Linear stores them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "ops/op.h"
#include "ops/rope_table.h"

namespace haversack {

// Inputs: x [tokens, in]. Parameters: W [out, in], b [1, out] when `bias`. Output: y [tokens, out].
class Linear : public Op {
 public:
  Linear(int64_t in, int64_t out, bool bias, ComputeType compute = ComputeType::kF32)
      : in_(in), out_(out), bias_(bias), matmul_(compute) {}

  std::string_view kind() const override { return "linear"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override { return {out_}; }
  BackwardReads backward_reads() const override { return {.inputs = {0}, .outputs = {}}; }
  size_t forward_scratch(const BatchShape& shape) const override;
  size_t backward_scratch(const BatchShape& shape) const override;
  double forward_flops(const BatchShape& shape) const override;
  std::vector<MatrixProduct> forward_products(const BatchShape& shape) const override;
  std::vector<MatrixProduct> backward_products(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 protected:
  // y = x W^T + beta y (+ b)
  void Project(const OpArgs& args, float beta) const;
  // ",bias" and ",bf16" where they hold, for signatures.
  std::string Traits() const;

  int64_t in_;
  int64_t out_;
  bool bias_;
  Matmul matmul_;
};

// Linear plus a residual connection. Inputs: x [tokens, in], r [tokens, out]. Output: r + x W^T (+
// b). The residual's gradient is the output's gradient: it costs neither time nor memory.
class ResidualLinear final : public Linear {
 public:
  using Linear::Linear;
  std::string_view kind() const override { return "residual_linear"; }
  int residual_input() const override { return 1; }
  void Forward(const OpArgs& args) const override;
};

// The packed projection to queries, keys and values, with rotary positions applied in place to q
// and k. Output columns: q heads, then k heads, then v heads.
class QkvProjection final : public Linear {
 public:
  struct Heads {
    int64_t q, kv, dim;
  };
  // `rope` null: no rotary embedding here (learned positions, or the query/key norm rotates).
  QkvProjection(int64_t in, const Heads& heads, bool bias, std::shared_ptr<const RopeTable> rope,
                ComputeType compute = ComputeType::kF32)
      : Linear(in, (heads.q + 2 * heads.kv) * heads.dim, bias, compute),
        heads_(heads),
        rope_(std::move(rope)) {}
  std::string_view kind() const override { return "qkv_projection"; }
  std::string signature() const override;
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 private:
  Heads heads_;
  std::shared_ptr<const RopeTable> rope_;
};

}  // namespace haversack
