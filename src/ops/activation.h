// Activations of the feed-forward layer.
#pragma once

#include <string>
#include <vector>

#include "ops/op.h"

namespace haversack {

// SwiGLU (Shazeer, arXiv 2002.05202). Input: gate_up [tokens, 2*cols], gate first.
// Output: silu(gate) * up [tokens, cols].
class Swiglu final : public Op {
 public:
  explicit Swiglu(int64_t cols) : cols_(cols) {}
  std::string_view kind() const override { return "swiglu"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override { return {cols_}; }
  BackwardReads backward_reads() const override { return {.inputs = {0}, .outputs = {}}; }
  int in_place_gradient() const override { return 0; }
  bool cheap() const override { return true; }
  bool reads_encoded(int) const override { return true; }
  size_t encoded_scratch(const BatchShape& shape) const override;
  double forward_flops(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 private:
  int64_t cols_;
};

// GELU (Hendrycks and Gimpel, arXiv 1606.08415): the tanh form ("gelu_new", "gelu_pytorch_tanh") or
// the exact one. Input and output: [tokens, cols].
class Gelu final : public Op {
 public:
  enum class Form { kTanh, kErf };
  Gelu(int64_t cols, Form form) : cols_(cols), form_(form) {}
  std::string_view kind() const override { return "gelu"; }
  std::string signature() const override;
  std::vector<int64_t> output_cols() const override { return {cols_}; }
  BackwardReads backward_reads() const override { return {.inputs = {0}, .outputs = {}}; }
  int in_place_gradient() const override { return 0; }
  bool cheap() const override { return true; }
  double forward_flops(const BatchShape& shape) const override;
  void Forward(const OpArgs& args) const override;
  void Backward(const OpArgs& args) const override;

 private:
  int64_t cols_;
  Form form_;
};

}  // namespace haversack
