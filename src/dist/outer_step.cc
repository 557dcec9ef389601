#include "dist/outer_step.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace haversack {
namespace {

constexpr int kTag = 200;

int64_t Aligned(int64_t floats) {
  return static_cast<int64_t>(AlignUp(floats * static_cast<int64_t>(sizeof(float)), 64));
}

// Where the parts lie in memory: what depends on the number of ranks comes last.
struct Parts {
  Parts(int64_t count, int ranks, const WireFormat& wire)
      : shape(count, ranks, wire),
        start(count),
        part_error(wire.feeds_back() ? count : 0),
        momentum(shape.OwnedCount()),
        owner_error(wire.feeds_back() ? shape.OwnedCount() : 0) {}

  int64_t StateBytes() const {
    return Aligned(start) + Aligned(part_error) + Aligned(momentum) + Aligned(owner_error);
  }

  ExchangeShape shape;
  int64_t start, part_error, momentum, owner_error;  // floats
};

std::span<float> Take(std::byte*& memory, int64_t floats) {
  auto* begin = reinterpret_cast<float*>(memory);
  memory += Aligned(floats);
  return {begin, static_cast<size_t>(floats)};
}

}  // namespace

std::vector<Gap> GapsOf(const Graph& graph, const ParamLayout& layout) {
  std::vector<Gap> gaps;
  for (size_t p = 0; p < graph.params.size(); ++p) {
    const int64_t begin = layout.offset[p] + graph.params[p].count();
    const int64_t end = p + 1 < graph.params.size() ? layout.offset[p + 1] : layout.total;
    if (begin < end) gaps.push_back({begin, end});
  }
  return gaps;
}

int64_t OuterStep::Bytes(int64_t count, int ranks, const WireFormat& wire) {
  return Parts(count, ranks, wire).StateBytes() + OwnerExchange::BufferBytes(count, ranks, wire);
}

OuterStep::OuterStep(const Communicator& comm, int64_t count, std::vector<Gap> gaps,
                     const Options& options, std::byte* memory)
    : comm_(comm),
      gaps_(std::move(gaps)),
      options_(options),
      exchange_(comm, count, options.wire,
                memory + Parts(count, comm.size(), options.wire).StateBytes(), kTag) {
  const Parts parts(count, comm.size(), options.wire);
  start_ = Take(memory, parts.start);
  part_error_ = Take(memory, parts.part_error);
  momentum_ = Take(memory, parts.momentum);
  owner_error_ = Take(memory, parts.owner_error);
}

void OuterStep::Reset(const float* weights) {
  std::copy_n(weights, start_.size(), start_.data());
  for (const std::span<float> part : {part_error_, momentum_, owner_error_}) {
    std::fill(part.begin(), part.end(), 0.0f);
  }
}

class OuterStep::Job : public ExchangeJob {
 public:
  Job(OuterStep& outer, float* weights)
      : outer_(outer),
        weights_(weights),
        lr_(static_cast<float>(outer.options_.lr)),
        mu_(static_cast<float>(outer.options_.momentum)),
        feeds_back_(outer.options_.wire.feeds_back()) {}

  void Contribute(int64_t begin, int64_t count, float* out) override {
    const float* start = outer_.start_.data() + begin;
    const float* weights = weights_ + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = start[i] - weights[i];
    if (!feeds_back_) return;
    float* error = outer_.part_error_.data() + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = error[i] += out[i];
  }

  void Contributed(int64_t begin, int64_t count, const float* seen) override {
    if (!feeds_back_) return;
    float* error = outer_.part_error_.data() + begin;
    for (int64_t i = 0; i < count; ++i) error[i] -= seen[i];
  }

  void Combine(int64_t, int64_t count, int64_t owned, float* sum) override {
    float* v = outer_.momentum_.data() + owned;
    for (int64_t i = 0; i < count; ++i) {
      v[i] = mu_ * v[i] + sum[i];
      sum[i] = lr_ * (sum[i] + mu_ * v[i]);
    }
    if (!feeds_back_) return;
    float* error = outer_.owner_error_.data() + owned;
    for (int64_t i = 0; i < count; ++i) sum[i] = error[i] += sum[i];
  }

  void Combined(int64_t, int64_t count, int64_t owned, const float* seen) override {
    if (!feeds_back_) return;
    float* error = outer_.owner_error_.data() + owned;
    for (int64_t i = 0; i < count; ++i) error[i] -= seen[i];
  }

  void Apply(int64_t begin, int64_t count, const float* result) override {
    float* start = outer_.start_.data() + begin;
    float* weights = weights_ + begin;
    for (int64_t i = 0; i < count; ++i) weights[i] = start[i] = start[i] - result[i];
  }

 private:
  OuterStep& outer_;
  float* weights_;
  float lr_, mu_;
  bool feeds_back_;
};

void OuterStep::Run(float* weights, std::span<const int64_t> tokens, const std::string& what) {
  int64_t total = 0;
  for (const int64_t t : tokens) total += t;
  HAVERSACK_CHECK(total > 0, "an outer step without tokens");
  std::vector<double> shares;
  for (const int64_t t : tokens) {
    shares.push_back(static_cast<double>(t) / static_cast<double>(total));
  }
  Job job(*this, weights);
  exchange_.Start(job, shares);
  exchange_.Finish(what);
  if (!comm_.alone()) comm_.traffic().syncs += 1;
  for (const Gap& gap : gaps_) {
    std::fill(weights + gap.begin, weights + gap.end, 0.0f);
    std::fill(start_.data() + gap.begin, start_.data() + gap.end, 0.0f);
  }
}

void PutOwned(const ExchangeShape& shape, int owner, std::span<const float> owned,
              std::span<float> v) {
  for (int64_t s = 0; s < shape.stages; ++s) {
    std::copy_n(owned.data() + s * shape.chunk, shape.Count(s, owner),
                v.data() + shape.Begin(s, owner));
  }
}

void TakeOwned(const ExchangeShape& shape, int owner, std::span<const float> v,
               std::span<float> owned) {
  for (int64_t s = 0; s < shape.stages; ++s) {
    std::copy_n(v.data() + shape.Begin(s, owner), shape.Count(s, owner),
                owned.data() + s * shape.chunk);
  }
}

}  // namespace haversack
