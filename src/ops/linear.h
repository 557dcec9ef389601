// Linear layers y = x W^T (+ b), weights stored [out, in] as Hugging Face's nn.Linear stores them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "ops/op.h"
#include "ops/rope_table.h"

namespace haversack {

// Inputs: x [tokens, in], and z [tokens, rank] last where the input is projected: then the weight's
// gradient is dy^T z [out, rank] (kernels/projection.h). Parameters: W [out, in], b [1, out] when
// `bias`. Output: y [tokens, out].
class Linear : public Op {
 public:
  Linear(int64_t in, int64_t out, bool bias, ComputeType compute = ComputeType::kF32)
      : in_(in), out_(out), bias_(bias), matmul_(compute) {}

  std::string_view kind() const override { return "linear"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override { return {out_}; }
  BackwardReads backward_reads() const override {
    return {.inputs = {rank_ > 0 ? backward_input() : 0}, .outputs = {}};
  }
  int backward_input() const override { return rank_ > 0 ? 1 : -1; }
  std::shared_ptr<const Op> WithProjectedInput(int64_t rank) const override {
    return Projected(*this, rank);
  }
  std::pair<int64_t, int64_t> columns_read(int input, int64_t cols) const override {
    return {0, input == backward_input() ? 0 : cols};
  }
  size_t forward_scratch(const BatchShape& shape) const override;
  size_t backward_scratch(const BatchShape& shape) const override;
  double forward_flops(const BatchShape& shape) const override;
  std::vector<MatrixProduct> forward_products(const BatchShape& shape) const override;
  std::vector<MatrixProduct> backward_products(const BatchShape& shape) const override;
  double backward_flops(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 protected:
  template <typename Layer>
  static std::shared_ptr<const Op> Projected(const Layer& layer, int64_t rank) {
    auto copy = std::make_shared<Layer>(layer);
    copy->rank_ = rank;
    return copy;
  }
  // y = x W^T + beta y (+ b)
  void Project(const OpArgs& args, float beta) const;
  // ",bias", ",bf16" and ",rank" where they hold, for signatures.
  std::string Traits() const;

  int64_t in_;
  int64_t out_;
  bool bias_;
  Matmul matmul_;
  // Columns of z, from which the weight's gradient [out, rank] is formed; 0: from x, [out, in].
  int64_t rank_ = 0;
};

// Linear plus a residual connection. Inputs: x [tokens, in], r [tokens, out]. Output: r + x W^T (+
// b). The residual's gradient is the output's gradient: it costs neither time nor memory.
class ResidualLinear final : public Linear {
 public:
  using Linear::Linear;
  std::string_view kind() const override { return "residual_linear"; }
  int residual_input() const override { return 1; }
  int backward_input() const override { return rank_ > 0 ? 2 : -1; }
  std::shared_ptr<const Op> WithProjectedInput(int64_t rank) const override {
    return Projected(*this, rank);
  }
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
  std::shared_ptr<const Op> WithProjectedInput(int64_t rank) const override {
    return Projected(*this, rank);
  }
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 private:
  Heads heads_;
  std::shared_ptr<const RopeTable> rope_;
};

}  // namespace haversack
