#include "dist/owner_exchange.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/error.h"

namespace haversack {
namespace {

// Stages on their way at a time: enough to fill a line of 100 Mbit/s and 30 ms with quarter-MiB
// messages.
constexpr int64_t kDepth = 4;
// Encoded bytes of one stage of parts.
constexpr int64_t kStageBytes = int64_t{1} << 20;
constexpr int64_t kRow = WireFormat::kRow;

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t ChunkOf(int64_t count, int ranks, const WireFormat& wire) {
  const int64_t even = Ceil(Ceil(count, kRow), ranks);
  const int64_t row_bytes = static_cast<int64_t>(wire.Bytes(16 * kRow)) / 16;
  const int64_t most = std::max<int64_t>(1, kStageBytes / ranks / row_bytes);
  return kRow * std::clamp<int64_t>(even, 1, most);
}

int64_t Slots(const ExchangeShape& shape) { return std::min(kDepth, shape.stages); }

}  // namespace

ExchangeShape::ExchangeShape(int64_t count, int ranks, const WireFormat& wire)
    : count(count),
      chunk(ChunkOf(count, ranks, wire)),
      stages(Ceil(Ceil(count, chunk), ranks)),
      ranks(ranks) {}

int64_t ExchangeShape::Begin(int64_t stage, int owner) const {
  return (stage * ranks + owner) * chunk;
}

int64_t ExchangeShape::Count(int64_t stage, int owner) const {
  return std::clamp<int64_t>(count - Begin(stage, owner), 0, chunk);
}

int64_t OwnerExchange::BufferBytes(int64_t count, int ranks, const WireFormat& wire) {
  const ExchangeShape shape(count, ranks, wire);
  const auto chunk_bytes = static_cast<int64_t>(wire.Bytes(shape.chunk));
  const int64_t floats = 2 * shape.chunk * static_cast<int64_t>(sizeof(float));
  return Slots(shape) * (3 * ranks + 1) * chunk_bytes + floats;
}

OwnerExchange::OwnerExchange(const Communicator& comm, int64_t count, const WireFormat& wire,
                             std::byte* buffers, int tag)
    : comm_(comm),
      shape_(count, comm.size(), wire),
      wire_(wire),
      tag_(tag),
      chunk_bytes_(wire.Bytes(shape_.chunk)) {
  const auto ranks = static_cast<size_t>(shape_.ranks);
  const auto take = [&](size_t bytes) {
    std::byte* start = buffers;
    buffers += bytes;
    return start;
  };
  part_ = reinterpret_cast<float*>(take(shape_.chunk * sizeof(float)));
  sum_ = reinterpret_cast<float*>(take(shape_.chunk * sizeof(float)));
  slots_.resize(Slots(shape_));
  for (Slot& slot : slots_) {
    slot.sent = take(ranks * chunk_bytes_);
    slot.received = take(ranks * chunk_bytes_);
    slot.results = take(ranks * chunk_bytes_);
    slot.result = take(chunk_bytes_);
  }
}

void OwnerExchange::Start(ExchangeJob& job, std::span<const double> weights) {
  HAVERSACK_CHECK(static_cast<int>(weights.size()) == shape_.ranks, "{} weights for {} ranks",
                  weights.size(), shape_.ranks);
  job_ = &job;
  weights_.assign(weights.begin(), weights.end());
  contributed_ = combined_ = applied_ = 0;
  for (Slot& slot : slots_) {
    for (auto* tickets :
         {&slot.parts, &slot.part_sends, &slot.result_receives, &slot.result_sends}) {
      tickets->assign(shape_.ranks, kNone);
    }
  }
}

// Receives are posted first: a part that arrives early then goes straight to its place.
void OwnerExchange::Contribute(int64_t turn) {
  const int64_t stage = Stage(turn);
  const int me = comm_.rank();
  Slot& slot = SlotOf(turn);
  for (int r = 0; r < shape_.ranks; ++r) {
    if (r == me) continue;
    if (shape_.Count(stage, r) > 0) {
      slot.result_receives[r] =
          comm_.Receive(r, tag_ + 1, slot.results + r * chunk_bytes_, chunk_bytes_);
    }
    if (shape_.Count(stage, me) > 0 && weights_[r] != 0) {
      slot.parts[r] = comm_.Receive(r, tag_, slot.received + r * chunk_bytes_, chunk_bytes_);
    }
  }
  if (weights_[me] == 0) return;
  for (int i = 1; i <= shape_.ranks; ++i) {
    const int owner = (me + i) % shape_.ranks;  // not all to the same one at once
    const int64_t count = shape_.Count(stage, owner);
    if (count == 0) continue;
    const int64_t begin = shape_.Begin(stage, owner);
    std::byte* sent = slot.sent + owner * chunk_bytes_;
    job_->Contribute(begin, count, part_);
    std::fill(part_ + count, part_ + shape_.chunk, 0.0f);
    wire_.Encode(part_, shape_.chunk, sent);
    if (owner != me) slot.part_sends[owner] = comm_.Send(owner, tag_, sent, chunk_bytes_);
    wire_.Decode(sent, shape_.chunk, part_);
    job_->Contributed(begin, count, part_);
  }
}

void OwnerExchange::Combine(int64_t turn) {
  const int64_t stage = Stage(turn);
  const int me = comm_.rank();
  const int64_t count = shape_.Count(stage, me);
  if (count == 0) return;
  Slot& slot = SlotOf(turn);
  const int64_t begin = shape_.Begin(stage, me);
  const float* reference = job_->Reference(begin);
  std::fill(sum_, sum_ + shape_.chunk, 0.0f);
  for (int r = 0; r < shape_.ranks; ++r) {
    if (weights_[r] == 0) continue;
    const std::byte* part = (r == me ? slot.sent : slot.received) + r * chunk_bytes_;
    wire_.Decode(part, shape_.chunk, part_);
    const auto weight = static_cast<float>(weights_[r]);
    if (reference != nullptr) {
      for (int64_t i = 0; i < count; ++i) sum_[i] += weight * (part_[i] - reference[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) sum_[i] += weight * part_[i];
    }
  }
  if (reference != nullptr) {
    for (int64_t i = 0; i < count; ++i) sum_[i] += reference[i];
  }
  const int64_t owned = stage * shape_.chunk;
  job_->Combine(begin, count, owned, sum_);
  wire_.Encode(sum_, shape_.chunk, slot.result);
  for (int i = 1; i < shape_.ranks; ++i) {
    const int r = (me + i) % shape_.ranks;
    slot.result_sends[r] = comm_.Send(r, tag_ + 1, slot.result, chunk_bytes_);
  }
  wire_.Decode(slot.result, shape_.chunk, sum_);
  job_->Combined(begin, count, owned, sum_);
}

void OwnerExchange::Apply(int64_t turn) {
  const int64_t stage = Stage(turn);
  Slot& slot = SlotOf(turn);
  for (int r = 0; r < shape_.ranks; ++r) {
    const int64_t count = shape_.Count(stage, r);
    if (count == 0) continue;
    const std::byte* result = r == comm_.rank() ? slot.result : slot.results + r * chunk_bytes_;
    wire_.Decode(result, shape_.chunk, part_);
    job_->Apply(shape_.Begin(stage, r), count, part_);
  }
}

bool OwnerExchange::AllDone(std::vector<Link::Ticket>& tickets) {
  bool all = true;
  for (Link::Ticket& ticket : tickets) {
    if (ticket == kNone) continue;
    if (comm_.Done(ticket)) {
      ticket = kNone;
      ++moves_;
    } else {
      all = false;
    }
  }
  return all;
}

bool OwnerExchange::Step(int64_t ready_from) {
  const int64_t stages = shape_.stages;
  if (applied_ < combined_) {
    Slot& slot = SlotOf(applied_);
    // The slot is used again after this: everything that was sent from it must be through.
    const bool received = AllDone(slot.result_receives);
    const bool parts_sent = AllDone(slot.part_sends);
    const bool result_sent = AllDone(slot.result_sends);
    if (received && parts_sent && result_sent) {
      Apply(applied_++);
      ++moves_;
      return true;
    }
  }
  if (combined_ < contributed_ && AllDone(SlotOf(combined_).parts)) {
    Combine(combined_++);
    ++moves_;
    return true;
  }
  if (contributed_ < stages && contributed_ < applied_ + static_cast<int64_t>(slots_.size()) &&
      shape_.Begin(Stage(contributed_), 0) >= ready_from) {
    Contribute(contributed_++);
    ++moves_;
    return true;
  }
  return false;
}

void OwnerExchange::Advance(int64_t ready_from) {
  HAVERSACK_CHECK(job_ != nullptr, "no exchange has begun");
  while (Step(ready_from)) {
  }
}

std::vector<int> OwnerExchange::Late() {
  // Of the oldest stage that is not through. Who owes a part comes before who owes a result: an
  // owner may itself be waiting for that part.
  Slot& slot = SlotOf(combined_ < contributed_ ? combined_ : applied_);
  for (const auto* tickets :
       {&slot.parts, &slot.part_sends, &slot.result_receives, &slot.result_sends}) {
    std::vector<int> late;
    for (int r = 0; r < shape_.ranks; ++r) {
      if ((*tickets)[r] != kNone) late.push_back(r);
    }
    if (!late.empty()) return late;
  }
  return {};
}

void OwnerExchange::Finish(const std::string& what) {
  HAVERSACK_CHECK(job_ != nullptr, "no exchange has begun");
  comm_.Wait(
      [&] {
        Advance(0);
        return applied_ == shape_.stages;
      },
      [&] { return moves_; }, [&] { return Late(); }, what);
  job_ = nullptr;
}

namespace {

class AverageJob : public ExchangeJob {
 public:
  AverageJob(std::span<float> x, bool mean) : x_(x), mean_(mean) {}

  void Contribute(int64_t begin, int64_t count, float* out) override {
    std::copy_n(x_.data() + begin, count, out);
  }
  const float* Reference(int64_t begin) override { return mean_ ? x_.data() + begin : nullptr; }
  void Apply(int64_t begin, int64_t count, const float* result) override {
    std::copy_n(result, count, x_.data() + begin);
  }

 private:
  std::span<float> x_;
  bool mean_;
};

}  // namespace

void AverageInto(OwnerExchange& exchange, std::span<float> x, std::span<const double> weights,
                 const std::string& what) {
  double total = 0;
  bool all = true;  // an owner without weight is no reference
  for (const double w : weights) {
    total += w;
    all = all && w > 0;
  }
  AverageJob job(x, all && std::abs(total - 1) < 1e-9);
  exchange.Start(job, weights);
  exchange.Finish(what);
}

}  // namespace haversack
