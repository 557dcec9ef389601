// Codecs against a plain copy of as many bytes: GB/s counts bytes read and bytes written. Args:
// rows, columns, floats from row to row.
//
//   codec_benchmark --benchmark_filter=int4
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/codec_error.h"
#include "codec/columns.h"
#include "codec/fused.h"
#include "kernels/elementwise.h"
#include "kernels/swiglu.h"

namespace haversack {
namespace {

// Whole pages, as most values of an arena.
template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t count)
      : data_(static_cast<T*>(std::aligned_alloc(4096, (count * sizeof(T) + 4095) / 4096 * 4096))) {
    std::fill_n(data_.get(), count, T{});
  }
  T* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
};

struct Value {
  explicit Value(const benchmark::State& state)
      : rows(state.range(0)),
        cols(state.range(1)),
        stride(state.range(2)),
        x(static_cast<size_t>(rows * stride)) {
    const RandomStream stream({.seed = 1});
    for (int64_t i = 0; i < rows * stride; ++i) x.get()[i] = stream.Normal(i);
  }
  EncodedShape Shape(const CodecSpec& codec) {
    outliers = LargestColumns(x.get(), stride, rows, cols, codec.outliers);
    return {codec, rows, cols, outliers};
  }

  int64_t rows, cols, stride;
  Buffer<float> x;
  std::vector<int32_t> outliers;
};

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Runs `work` and a copy of as many bytes by turns, so that what disturbs one disturbs the other.
void Compare(benchmark::State& state, Value& value, size_t encoded_bytes,
             const std::function<void()>& work) {
  const double plain = static_cast<double>(value.rows * value.cols) * sizeof(float);
  const double moved = plain + static_cast<double>(encoded_bytes);
  const Buffer<float> to(static_cast<size_t>(value.rows * value.cols));
  const auto rows = static_cast<int64_t>(moved / (2 * plain) * static_cast<double>(value.rows));
  std::vector<double> works, copies;
  for (auto _ : state) {
    copies.push_back(Seconds(
        [&] { CopyRows(value.x.get(), value.stride, rows, value.cols, to.get(), value.cols); }));
    works.push_back(Seconds(work));
    state.SetIterationTime(works.back());
  }
  state.counters["GB/s"] = moved * 1e-9 / Median(works);
  state.counters["of_copy"] = Median(copies) / Median(works);
}

void EncodeValue(benchmark::State& state, const CodecSpec& codec) {
  Value value(state);
  const EncodedShape shape = value.Shape(codec);
  const size_t bytes = EncodedBytes(codec, value.rows, value.cols);
  const Buffer<std::byte> encoded(bytes);
  Compare(state, value, bytes,
          [&] { Encode(shape, value.x.get(), value.stride, {.seed = 1}, encoded.get()); });
}

void DecodeValue(benchmark::State& state, const CodecSpec& codec) {
  Value value(state);
  const EncodedShape shape = value.Shape(codec);
  const size_t bytes = EncodedBytes(codec, value.rows, value.cols);
  const Buffer<std::byte> encoded(bytes);
  Encode(shape, value.x.get(), value.stride, {.seed = 1}, encoded.get());
  Compare(state, value, bytes, [&] { Decode(shape, encoded.get(), value.x.get(), value.stride); });
}

// What the codec loses: relative squared error on normal values, and where 1% of the columns are
// 100 times as large.
void MeasureValue(benchmark::State& state, const CodecSpec& codec) {
  Value value(state);
  const auto measure = [&] {
    return MeasureError(value.Shape(codec), value.x.get(), value.stride, {.seed = 1}).Relative();
  };
  for (auto _ : state) state.SetIterationTime(Seconds(measure));
  state.counters["bits"] = 8 * static_cast<double>(EncodedBytes(codec, value.rows, value.cols)) /
                           static_cast<double>(value.rows * value.cols);
  state.counters["normal"] = measure();
  for (int64_t r = 0; r < value.rows; ++r) {
    for (int64_t c = 50; c < value.cols; c += 100) value.x.get()[r * value.stride + c] *= 100;
  }
  // Of the other columns: the large ones would hide what becomes of them.
  const EncodedShape shape = value.Shape(codec);
  const Buffer<std::byte> encoded(EncodedBytes(codec, value.rows, value.cols));
  const Buffer<float> decoded(static_cast<size_t>(value.rows * value.cols));
  Encode(shape, value.x.get(), value.stride, {.seed = 1}, encoded.get());
  Decode(shape, encoded.get(), decoded.get(), value.cols);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < value.rows * value.cols; ++i) {
    if (i % value.cols % 100 == 50) continue;
    const double x = value.x.get()[i / value.cols * value.stride + i % value.cols];
    error += (decoded.get()[i] - x) * (decoded.get()[i] - x);
    norm += x * x;
  }
  state.counters["massive"] = error / norm;
}

// swiglu's backward from an encoded gate_up of these columns; speedup: over decoding first.
void FusedSwiglu(benchmark::State& state, const CodecSpec& codec) {
  Value value(state);
  const int64_t rows = value.rows, cols = value.cols / 2;
  const EncodedShape shape{codec, rows, 2 * cols, {}};
  const Buffer<std::byte> encoded(EncodedBytes(codec, rows, 2 * cols));
  Encode(shape, value.x.get(), value.stride, {.seed = 1}, encoded.get());
  const Buffer<float> dy(static_cast<size_t>(rows * cols)),
      out(static_cast<size_t>(rows * cols * 2));
  std::vector<double> fused, apart;
  for (auto _ : state) {
    apart.push_back(Seconds([&] {
      Decode(shape, encoded.get(), out.get(), 2 * cols);
      SwigluBackward(dy.get(), out.get(), rows, cols, out.get());
    }));
    const EncodedColumns part{shape, encoded.get(), 0};
    fused.push_back(Seconds([&] {
      SwigluBackwardEncoded(dy.get(), {&part, 1}, rows, cols, out.get());
    }));
    state.SetIterationTime(fused.back());
  }
  state.counters["speedup"] = Median(apart) / Median(fused);
}

void Register(const std::string& name, void (*run)(benchmark::State&, const CodecSpec&),
              const CodecSpec& codec) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [run, codec](benchmark::State& state) { run(state, codec); })
      ->Args({2048, 576, 576})
      ->Args({2048, 1536, 3072})
      ->Args({2048, 960, 960})
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.1);
}

[[maybe_unused]] const bool registered = [] {
  for (const char* text : {"bf16", "int8", "int8/32", "int8/128", "int8+o6", "int8+sr", "int4",
                           "int4/32", "int4/128", "int4/32+o6", "int4/32+o6+sr"}) {
    const CodecSpec codec = ParseCodec(text, "benchmark");
    Register("encode/" + codec.ToText(), EncodeValue, codec);
    Register("decode/" + codec.ToText(), DecodeValue, codec);
    Register("error/" + codec.ToText(), MeasureValue, codec);
    if (codec.outliers == 0) Register("fused/" + codec.ToText(), FusedSwiglu, codec);
  }
  return true;
}();

}  // namespace
}  // namespace haversack
