#include "exec/machine_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "exec/arena.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

namespace haversack {
namespace {

// Beyond it a copy's rate no longer depends on the size.
constexpr int64_t kMostCopied = int64_t{64} << 20;
constexpr int64_t kCopyRow = 1024;  // floats
constexpr int64_t kAttentionTokens = 2048;
// Short work is repeated for so many seconds: the least of a few is mostly the clock's noise.
constexpr double kLeastSpent = 0.005;

// Untouched memory would be measured as page faults, and zeros might be multiplied faster.
float* TakeFilled(Arena& arena, int64_t floats) {
  auto* data = reinterpret_cast<float*>(arena.Take("operand", floats * 4));
  for (int64_t i = 0; i < floats; ++i) data[i] = 0.001f * static_cast<float>(i % 1021 - 510);
  return data;
}

int64_t Aligned(int64_t floats) { return (floats + 15) / 16 * 16 * 4; }

template <typename Work>
double LeastSeconds(int repetitions, const Work& work) {
  work();  // warm: pages, caches, whatever a library sets up at first use
  double least = std::numeric_limits<double>::infinity(), spent = 0;
  for (int i = 0; i < repetitions || spent < kLeastSpent; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    least = std::min(least, seconds.count());
    spent += seconds.count();
  }
  return least;
}

// One sequence of `tokens` through an attention op, on buffers of its own.
class AttentionRun {
 public:
  AttentionRun(const Graph& graph, NodeId id, int64_t tokens)
      : node_(graph.nodes[id]), shape_{.sequences = 1, .seq = tokens}, arena_(Bytes(graph)) {
    positions_.resize(tokens);
    std::iota(positions_.begin(), positions_.end(), 0);
    boundaries_ = {0, static_cast<int32_t>(tokens)};
    batch_ = {.ids = {}, .targets = {}, .positions = positions_, .boundaries = boundaries_};
    args_.batch = &batch_;
    args_.tokens = tokens;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      const int64_t floats = tokens * graph.values[node_.inputs[i]].cols;
      args_.in[i] = TakeFilled(arena_, floats);
      args_.grad_in[i] = TakeFilled(arena_, floats);
    }
    for (size_t i = 0; i < node_.outputs.size(); ++i) {
      const int64_t floats = tokens * graph.values[node_.outputs[i]].cols;
      args_.out[i] = TakeFilled(arena_, floats);
      args_.grad_out[i] = TakeFilled(arena_, floats);
    }
    args_.scratch = arena_.Take("scratch", ScratchBytes());
  }

  double Seconds(bool backward, int repetitions) {
    node_.op->Forward(args_);  // what the backward reads
    if (!backward) return LeastSeconds(repetitions, [&] { node_.op->Forward(args_); });
    return LeastSeconds(repetitions, [&] { node_.op->Backward(args_); });
  }

 private:
  int64_t ScratchBytes() const {
    return static_cast<int64_t>(
        std::max(node_.op->forward_scratch(shape_), node_.op->backward_scratch(shape_)));
  }
  int64_t Bytes(const Graph& graph) const {
    int64_t bytes = ScratchBytes() + 64;
    for (const std::vector<ValueId>* values : {&node_.inputs, &node_.outputs}) {
      for (const ValueId v : *values) bytes += 2 * Aligned(shape_.tokens() * graph.values[v].cols);
    }
    return bytes;
  }

  const Node& node_;
  BatchShape shape_;
  Arena arena_;
  std::vector<int32_t> positions_, boundaries_;
  MicroBatch batch_;
  OpArgs args_;
};

// The least over the four forms.
double BestProduct(const MatrixProduct& product, int repetitions) {
  const int64_t m = product.m, n = product.n, k = product.k;
  Arena arena(Aligned(m * k) + Aligned(k * n) + Aligned(m * n));
  const float* a = TakeFilled(arena, m * k);
  const float* b = TakeFilled(arena, k * n);
  float* c = TakeFilled(arena, m * n);
  double least = std::numeric_limits<double>::infinity();
  for (const Transpose ta : {Transpose::kNo, Transpose::kYes}) {
    for (const Transpose tb : {Transpose::kNo, Transpose::kYes}) {
      const int64_t lda = ta == Transpose::kYes ? m : k, ldb = tb == Transpose::kYes ? k : n;
      const double seconds = LeastSeconds(repetitions, [&] {
        if (product.type == ComputeType::kF32) {
          Gemm(ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, n);
        } else {  // bits of floats are as good as any
          GemmBF16(ta, tb, m, n, k, 1, reinterpret_cast<const uint16_t*>(a), lda,
                   reinterpret_cast<const uint16_t*>(b), ldb, 0, c, n);
        }
      });
      least = std::min(least, seconds);
    }
  }
  return least;
}

}  // namespace

double MachineLimits::ProductSeconds(const MatrixProduct& product) {
  const std::string key =
      fmt::format("product {}x{}x{} {}", product.m, product.n, product.k, ToText(product.type));
  const auto [found, fresh] = seconds_.try_emplace(key, 0);
  if (fresh) found->second = BestProduct(product, repetitions_);
  return found->second;
}

double MachineLimits::CopySeconds(double bytes) {
  const int64_t rows = std::max<int64_t>(
      1, static_cast<int64_t>(std::min<double>(bytes, kMostCopied)) / (2 * kCopyRow * 4));
  const auto [found, fresh] = seconds_.try_emplace(fmt::format("copy {}", rows), 0);
  if (fresh) {
    Arena arena(2 * Aligned(rows * kCopyRow));
    const float* from = TakeFilled(arena, rows * kCopyRow);
    float* to = TakeFilled(arena, rows * kCopyRow);
    found->second =
        LeastSeconds(repetitions_, [&] { CopyRows(from, kCopyRow, rows, kCopyRow, to, kCopyRow); });
  }
  return found->second * bytes / static_cast<double>(2 * rows * kCopyRow * 4);
}

double MachineLimits::AttentionRate(const Graph& graph, NodeId node, int64_t seq, bool backward) {
  const Op& op = *graph.nodes[node].op;
  double best = 0;
  for (const int64_t tokens : {seq, kAttentionTokens}) {
    const BatchShape shape{.sequences = 1, .seq = tokens};
    const double flops = backward ? op.backward_flops(shape) : op.forward_flops(shape);
    const auto [found, fresh] = seconds_.try_emplace(
        fmt::format("{} {} {}", op.signature(), backward ? "backward" : "forward", tokens), 0);
    if (fresh) found->second = AttentionRun(graph, node, tokens).Seconds(backward, repetitions_);
    best = std::max(best, flops / found->second);
  }
  return best;
}

void MachineLimits::Apply(const Graph& graph, StepProfile& profile) {
  for (StepProfile::Row& row : profile.rows()) {
    const auto count = static_cast<double>(row.count);
    row.limit_seconds = 0;
    switch (row.bound) {
      case Bound::kProducts:
        for (const MatrixProduct& product : ProductsOf(graph, row)) {
          row.limit_seconds += count * static_cast<double>(product.count) * ProductSeconds(product);
        }
        break;
      case Bound::kAttention:
        row.limit_seconds = row.flops / AttentionRate(graph, row.node, row.shape.seq,
                                                      row.kind == InstrKind::kBackward);
        break;
      case Bound::kMemory:
        row.limit_seconds = count * CopySeconds(row.bytes / count);
        break;
    }
  }
}

}  // namespace haversack
