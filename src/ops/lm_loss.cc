#include "ops/lm_loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "kernels/cross_entropy.h"
#include "kernels/gemm.h"

namespace haversack {

std::string LmLoss::signature() const {
  return fmt::format("lm_loss({}x{},chunk {}{})", hidden_, vocab_, chunk_,
                     matmul_.type() == ComputeType::kBF16 ? ",bf16" : "");
}

int64_t LmLoss::Chunk(int64_t tokens) const { return std::min(chunk_, tokens); }

size_t LmLoss::forward_scratch(const BatchShape& shape) const {
  const int64_t rows = Chunk(shape.tokens());
  return AlignUp(rows * sizeof(float), 64) + AlignUp(rows * vocab_ * sizeof(float), 64) +
         std::max({matmul_.Scratch(rows, vocab_, hidden_), matmul_.Scratch(vocab_, hidden_, rows),
                   matmul_.Scratch(rows, hidden_, vocab_)});
}

double LmLoss::forward_flops(const BatchShape& shape) const {
  return 6.0 * static_cast<double>(shape.tokens()) * static_cast<double>(hidden_ * vocab_);
}

std::vector<MatrixProduct> LmLoss::forward_products(const BatchShape& shape) const {
  const int64_t chunk = Chunk(shape.tokens());
  std::vector<MatrixProduct> products;
  const auto add = [&](int64_t rows, int64_t count) {
    if (rows == 0 || count == 0) return;
    const ComputeType type = matmul_.type();
    products.push_back({Transpose::kNo, Transpose::kYes, rows, vocab_, hidden_, type, count});
    products.push_back({Transpose::kYes, Transpose::kNo, vocab_, hidden_, rows, type, count});
    products.push_back({Transpose::kNo, Transpose::kNo, rows, hidden_, vocab_, type, count});
  };
  add(chunk, shape.tokens() / chunk);
  add(shape.tokens() % chunk, 1);
  return products;
}

void LmLoss::Logits(const float* x, int64_t rows, const float* head, float* logits) const {
  Gemm(Transpose::kNo, Transpose::kYes, rows, vocab_, hidden_, 1, x, hidden_, head, hidden_, 0,
       logits, vocab_);
}

void LmLoss::Forward(const OpArgs& args) const {
  const int64_t chunk = Chunk(args.tokens);
  auto* losses = reinterpret_cast<float*>(args.scratch);
  auto* logits = reinterpret_cast<float*>(args.scratch + AlignUp(chunk * sizeof(float), 64));
  std::byte* scratch = args.scratch + AlignUp(chunk * sizeof(float), 64) +
                       AlignUp(chunk * vocab_ * sizeof(float), 64);
  const float* head = args.param[0];
  for (int64_t begin = 0; begin < args.tokens; begin += chunk) {
    const int64_t rows = std::min(chunk, args.tokens - begin);
    const float* x = args.in[0] + begin * hidden_;
    const int32_t* targets = args.batch->targets.data() + begin;
    matmul_(Transpose::kNo, Transpose::kYes, rows, vocab_, hidden_, 1, x, hidden_, head, hidden_, 0,
            logits, vocab_, scratch);
    if (args.grad_param[0] == nullptr) {
      CrossEntropyForward(logits, vocab_, rows, vocab_, targets, losses);
    } else {
      CrossEntropyForwardBackward(logits, vocab_, rows, vocab_, targets, args.batch->loss_scale,
                                  losses);
      const bool accumulate = args.accumulate_param[0] || begin > 0;
      matmul_(Transpose::kYes, Transpose::kNo, vocab_, hidden_, rows, 1, logits, vocab_, x, hidden_,
              accumulate ? 1 : 0, args.grad_param[0], hidden_, scratch);
      matmul_(Transpose::kNo, Transpose::kNo, rows, hidden_, vocab_, 1, logits, vocab_, head,
              hidden_, 0, args.grad_in[0] + begin * hidden_, hidden_, scratch);
    }
    // In token order, so that the sum does not depend on threads.
    for (int64_t row = 0; row < rows; ++row) *args.batch->loss_sum += losses[row];
  }
}

void LmLoss::Backward(const OpArgs&) const {
  HAVERSACK_CHECK(false, "lm_loss computes its gradient in its forward");
}

}  // namespace haversack
