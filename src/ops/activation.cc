#include "ops/activation.h"

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/gelu.h"
#include "kernels/swiglu.h"

namespace haversack {

std::string Swiglu::signature() const { return fmt::format("swiglu({})", cols_); }

double Swiglu::forward_flops(const BatchShape& shape) const {
  return 6.0 * static_cast<double>(shape.tokens() * cols_);
}

size_t Swiglu::encoded_scratch(const BatchShape&) const {
  return SwigluForwardEncodedScratch(cols_);
}

void Swiglu::Forward(const OpArgs& args) const {
  if (!args.encoded[0].empty()) {
    return SwigluForwardEncoded(args.encoded[0], args.tokens, cols_, args.out[0], args.scratch);
  }
  SwigluForward(args.in[0], args.tokens, cols_, args.out[0]);
}

void Swiglu::Backward(const OpArgs& args) const {
  HAVERSACK_CHECK(!args.accumulate_in[0], "swiglu's input has no other consumer");
  if (!args.encoded[0].empty()) {
    return SwigluBackwardEncoded(args.grad_out[0], args.encoded[0], args.tokens, cols_,
                                 args.grad_in[0]);
  }
  SwigluBackward(args.grad_out[0], args.in[0], args.tokens, cols_, args.grad_in[0]);
}

std::string Gelu::signature() const {
  return fmt::format("gelu({}{})", cols_, form_ == Form::kTanh ? ",tanh" : "");
}

double Gelu::forward_flops(const BatchShape& shape) const {
  return 10.0 * static_cast<double>(shape.tokens() * cols_);
}

void Gelu::Forward(const OpArgs& args) const {
  const int64_t count = args.tokens * cols_;
  if (form_ == Form::kTanh) {
    GeluTanhForward(args.in[0], count, args.out[0]);
  } else {
    GeluErfForward(args.in[0], count, args.out[0]);
  }
}

void Gelu::Backward(const OpArgs& args) const {
  HAVERSACK_CHECK(!args.accumulate_in[0], "gelu's input has no other consumer");
  const int64_t count = args.tokens * cols_;
  if (form_ == Form::kTanh) {
    GeluTanhBackward(args.grad_out[0], args.in[0], count, args.grad_in[0]);
  } else {
    GeluErfBackward(args.grad_out[0], args.in[0], count, args.grad_in[0]);
  }
}

}  // namespace haversack
