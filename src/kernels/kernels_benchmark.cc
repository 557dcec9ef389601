// GB/s of each kernel, counting the bytes that have to move once: every input read, every output
// written, one that is updated in place both. Arg: rows, cols.
//
//   kernels_benchmark --benchmark_filter=Rms
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/adamw_8bit.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/layer_norm.h"
#include "kernels/qk_norm.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace haversack {
namespace {

// Whole pages, as most values of an arena, so that all buffers share their offset within a page;
// touched, with small positive values.
class Buffer {
 public:
  explicit Buffer(int64_t count)
      : data_(static_cast<float*>(std::aligned_alloc(4096, (count * 4 + 4095) / 4096 * 4096))) {
    for (int64_t i = 0; i < count; ++i) data_.get()[i] = 0.001f * static_cast<float>(i % 1021);
  }
  operator float*() { return data_.get(); }  // NOLINT: stands for its pointer

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::unique_ptr<float, Free> data_;
};

struct Bench {
  Bench(int64_t rows, int64_t cols)
      : rows(rows),
        cols(cols),
        a(rows * cols),
        b(rows * cols),
        c(rows * cols),
        row(rows),
        row2(rows),
        col(cols),
        col2(cols),
        col3(cols),
        scratch(static_cast<int64_t>(LayerNormBackwardScratch(rows, cols) / sizeof(float))),
        cos(rows * 32),
        sin(rows * 32),
        ids(static_cast<size_t>(rows)) {
    Fill(cos, rows * 32, 0.6f);
    Fill(sin, rows * 32, 0.8f);
    for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(r * 7 % std::min(rows, cols));
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(static_cast<float*>(scratch)); }

  int64_t rows, cols;
  Buffer a, b, c, row, row2, col, col2, col3, scratch, cos, sin;
  std::vector<int32_t> ids;
};

// `passes`: floats moved per element.
void Run(benchmark::State& state, double passes, void (*kernel)(Bench&)) {
  Bench bench(state.range(0), state.range(1));
  for (auto _ : state) kernel(bench);
  state.counters["GB/s"] = benchmark::Counter(
      passes * sizeof(float) * static_cast<double>(bench.rows * bench.cols) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate);
}

#define KERNEL_BENCHMARK(name, passes, ...)            \
  void BM_##name(benchmark::State& state) {            \
    Run(state, passes, [](Bench& s) { __VA_ARGS__; }); \
  }                                                    \
  BENCHMARK(BM_##name)                                 \
      ->Args({2048, 576})                              \
      ->Args({2048, 1536})                             \
      ->Args({256, 49152})                             \
      ->UseRealTime()                                  \
      ->Unit(benchmark::kMicrosecond)                  \
      ->MinTime(0.1)

KERNEL_BENCHMARK(Copy, 2, CopyRows(s.a, s.cols, s.rows, s.cols, s.b, s.cols));
KERNEL_BENCHMARK(Add, 3, Add(s.a, s.b, s.rows* s.cols, s.c));
KERNEL_BENCHMARK(AddInto, 3, AddInto(s.a, s.b, s.rows* s.cols));
KERNEL_BENCHMARK(Fill, 1, Fill(s.a, s.rows* s.cols, 0.0f));
KERNEL_BENCHMARK(AddBias, 2, AddBias(s.a, s.rows, s.cols, s.col));
KERNEL_BENCHMARK(BiasBackward, 1,
                 BiasBackward(s.a, s.rows, s.cols, s.cols, s.col, false, s.bytes()));
KERNEL_BENCHMARK(RmsNormForward, 2, RmsNormForward(s.a, s.col, 1e-5f, s.rows, s.cols, s.b, s.row));
KERNEL_BENCHMARK(RmsNormRebuild, 2, RmsNormRebuild(s.a, s.col, s.row, s.rows, s.cols, s.b));
KERNEL_BENCHMARK(RmsNormBackward, 3,
                 RmsNormBackward(s.a, s.b, s.col, s.row, s.rows, s.cols, s.c, false, s.col2, true,
                                 s.bytes()));
KERNEL_BENCHMARK(LayerNormForward, 2,
                 LayerNormForward(s.a, s.col, s.col2, 1e-5f, s.rows, s.cols, s.b, s.row, s.row2));
KERNEL_BENCHMARK(LayerNormBackward, 3,
                 LayerNormBackward(s.a, s.b, s.col, s.row, s.row2, s.rows, s.cols, s.c, false,
                                   s.col2, s.col3, true, s.bytes()));
// Heads of 64. A true rotation, since any other, repeated in place, ends in denormals or infinity.
KERNEL_BENCHMARK(Rope, 2,
                 RopeForward(s.a, s.cols, s.rows, s.cols / 64, 64, s.ids.data(), s.cos, s.sin));
KERNEL_BENCHMARK(QkNormRopeForward, 2,
                 QkNormRopeForward(s.a, s.cols, s.rows, s.cols / 64 - 1, 1, 64, s.col, s.col, 1e-6f,
                                   s.ids.data(), s.cos, s.sin, s.b, s.c));
KERNEL_BENCHMARK(SwigluForward, 1.5, SwigluForward(s.a, s.rows, s.cols / 2, s.b));
KERNEL_BENCHMARK(SwigluBackward, 2.5, SwigluBackward(s.b, s.a, s.rows, s.cols / 2, s.c));
KERNEL_BENCHMARK(GeluTanhForward, 2, GeluTanhForward(s.a, s.rows* s.cols, s.b));
KERNEL_BENCHMARK(GeluTanhBackward, 3, GeluTanhBackward(s.b, s.a, s.rows* s.cols, s.c));
KERNEL_BENCHMARK(GeluErfForward, 2, GeluErfForward(s.a, s.rows* s.cols, s.b));
KERNEL_BENCHMARK(GeluErfBackward, 3, GeluErfBackward(s.b, s.a, s.rows* s.cols, s.c));
KERNEL_BENCHMARK(CrossEntropyForward, 1,
                 CrossEntropyForward(s.a, s.cols, s.rows, s.cols, s.ids.data(), s.row));
KERNEL_BENCHMARK(CrossEntropyForwardBackward, 2,
                 CrossEntropyForwardBackward(s.a, s.cols, s.rows, s.cols, s.ids.data(), 1.0f,
                                             s.row));
KERNEL_BENCHMARK(EmbeddingForward, 2,
                 EmbeddingForward(s.a, s.rows, s.cols, s.ids.data(), s.rows, s.b));
KERNEL_BENCHMARK(EmbeddingBackward, 3,
                 EmbeddingBackward(s.a, s.ids.data(), s.rows, s.cols, s.b, s.rows));
KERNEL_BENCHMARK(SquaredNorm, 1, benchmark::DoNotOptimize(SquaredNorm(s.a, s.rows* s.cols)));

void BM_AdamW(benchmark::State& state) {
  const int64_t count = state.range(0) * state.range(1);
  Buffer weight(count), grad(count), m(count), v(count);
  const AdamWStep step{.lr = 1e-9, .bias_correction1 = 0.1, .bias_correction2 = 0.001};
  for (auto _ : state) AdamWUpdate(weight, grad, m, v, count, step);
  state.counters["GB/s"] = benchmark::Counter(7 * sizeof(float) * static_cast<double>(count) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_AdamW)
    ->Args({2048, 576})
    ->Args({2048, 1536})
    ->Args({256, 49152})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.1);

// Its traffic is less than half of AdamW's; its time is that of finding codes.
void BM_AdamW8Bit(benchmark::State& state) {
  const int64_t count = state.range(0) * state.range(1);
  Buffer weight(count), grad(count), m_scale(MomentBlocks(count)), v_scale(MomentBlocks(count));
  std::vector<uint8_t> m(count), v(count);
  const AdamWStep step{.lr = 1e-9, .bias_correction1 = 0.1, .bias_correction2 = 0.001};
  const Moments8Bit moments{m.data(), v.data(), m_scale, v_scale};
  for (auto _ : state) AdamWUpdate8Bit(weight, grad, moments, count, step);
  state.counters["GB/s"] = benchmark::Counter(16 * static_cast<double>(count) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_AdamW8Bit)
    ->Args({2048, 576})
    ->Args({256, 49152})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.1);

}  // namespace
}  // namespace haversack
