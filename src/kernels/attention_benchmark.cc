// GFLOP/s count the products that the causal mask leaves, 2 in the forward pass and 5 in the
// backward.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "kernels/attention.h"

namespace haversack {
namespace {

struct Setup {
  explicit Setup(const benchmark::State& state) {
    const int64_t documents = state.range(0), length = state.range(1);
    const int64_t width = (shape.q_heads + 2 * shape.kv_heads) * shape.head_dim;
    shape.q_stride = shape.k_stride = shape.v_stride = width;
    shape.out_stride = shape.q_heads * shape.head_dim;
    for (int64_t i = 0; i <= documents; ++i) boundaries.push_back(i * length);
    const int64_t tokens = documents * length;
    qkv.resize(tokens * width);
    d_qkv.resize(tokens * width);
    out.resize(tokens * shape.out_stride);
    d_out.resize(tokens * shape.out_stride);
    lse.resize(tokens * shape.q_heads);
    const RandomStream random({.seed = 1});
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = random.Normal(i % 4096);
    for (size_t i = 0; i < d_out.size(); ++i) d_out[i] = random.Normal(i % 8192);
    const size_t bytes = std::max(AttentionForwardScratch(shape, length, NumThreads()),
                                  AttentionBackwardScratch(shape, tokens, length, NumThreads()));
    scratch.reset(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
  }

  void Forward() {
    AttentionForward(shape, boundaries, qkv.data(), qkv.data() + k_at(), qkv.data() + v_at(),
                     out.data(), lse.data(), scratch.get());
  }
  void Backward() {
    AttentionBackward(shape, boundaries, qkv.data(), qkv.data() + k_at(), qkv.data() + v_at(),
                      out.data(), lse.data(), d_out.data(), d_qkv.data(), d_qkv.data() + k_at(),
                      d_qkv.data() + v_at(), scratch.get());
  }
  int64_t k_at() const { return shape.q_heads * shape.head_dim; }
  int64_t v_at() const { return k_at() + shape.kv_heads * shape.head_dim; }

  void Report(benchmark::State& state, int products) const {
    const double length = state.range(1);
    state.counters["GFLOP/s"] =
        benchmark::Counter(1e-9 * products * 2 * shape.head_dim * shape.q_heads * state.range(0) *
                               length * (length + 1) / 2,
                           benchmark::Counter::kIsIterationInvariantRate);
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  AttentionShape shape{.q_heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125f};
  std::vector<int32_t> boundaries;
  std::vector<float> qkv, d_qkv, out, d_out, lse;
  std::unique_ptr<std::byte, Free> scratch;
};

void Forward(benchmark::State& state) {
  Setup setup(state);
  for (auto _ : state) setup.Forward();
  setup.Report(state, 2);
}

void Backward(benchmark::State& state) {
  Setup setup(state);
  setup.Forward();
  for (auto _ : state) setup.Backward();
  setup.Report(state, 5);
}

void Documents(benchmark::internal::Benchmark* b) {
  b->ArgNames({"documents", "tokens"})->UseRealTime()->Unit(benchmark::kMillisecond);
  b->Args({4, 512})->Args({2, 2048})->Args({1, 8192})->Args({32, 64})->Args({680, 3});
}

BENCHMARK(Forward)->Apply(Documents);
BENCHMARK(Backward)->Apply(Documents);

}  // namespace
}  // namespace haversack
