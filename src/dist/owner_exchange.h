// The one exchange of whole vectors: each piece of a vector has an owner, who receives every rank's
// part of it, combines them in rank order, and sends what comes out to all. All ranks, the owner
// too, take the result from its wire form, so that they hold the same bits whatever the transport;
// and no rank moves more than twice the vector, as in a ring, but each message goes straight to
// whom it is for.
//
//   OwnerExchange exchange(comm, count, wire, memory);
//   exchange.Start(job);
//   while (...) exchange.Advance(ready_from);  // while there is something else to do
//   exchange.Finish("the gradients of step 7");
//
// The vector is cut into chunks, the unit of a message. A stage is one chunk an owner, size()
// neighbouring ones; stages run from the end of the vector to its start, the order in which a
// backward pass completes its gradients, and a few of them are on their way at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/wire_format.h"

namespace haversack {

// What is exchanged. Ranges are [begin, begin + count) of the vector; buffers are [count].
class ExchangeJob {
 public:
  virtual ~ExchangeJob() = default;
  // This rank's part.
  virtual void Contribute(int64_t begin, int64_t count, float* out) = 0;
  // What the owner will make of that part: it differs where the transport rounds.
  virtual void Contributed(int64_t begin, int64_t count, const float* seen) {
    (void)begin, (void)count, (void)seen;
  }
  // Owner: where not null, parts are summed as differences from this vector, which is added at the
  // end; for weights whose sum is 1. Equal parts then give exactly that part.
  virtual const float* Reference(int64_t begin) {
    (void)begin;
    return nullptr;
  }
  // Owner: the weighted sum of all parts, to be turned into the result in place. `owned`: where
  // the range begins in what this rank owns, put together (OwnedCount floats).
  virtual void Combine(int64_t begin, int64_t count, int64_t owned, float* sum) {
    (void)begin, (void)count, (void)owned, (void)sum;
  }
  // Owner: what all ranks will see of that result.
  virtual void Combined(int64_t begin, int64_t count, int64_t owned, const float* seen) {
    (void)begin, (void)count, (void)owned, (void)seen;
  }
  // The result.
  virtual void Apply(int64_t begin, int64_t count, const float* result) = 0;
};

// How a vector is cut among `ranks` owners: chunk c belongs to rank c % ranks.
struct ExchangeShape {
  ExchangeShape(int64_t count, int ranks, const WireFormat& wire);

  int64_t count;   // floats of the vector
  int64_t chunk;   // floats of a chunk, whole rows; the last one is shorter
  int64_t stages;  // chunks an owner
  int ranks;

  int64_t Begin(int64_t stage, int owner) const;  // may pass `count`
  int64_t Count(int64_t stage, int owner) const;  // 0 where the vector has ended before
  // Floats of the vector that each rank makes room for as their owner.
  int64_t OwnedCount() const { return stages * chunk; }
};

class OwnerExchange {
 public:
  // Buffers that an exchange takes from the budget.
  static int64_t BufferBytes(int64_t count, int ranks, const WireFormat& wire);

  // `buffers`: BufferBytes, 64-byte aligned. `tag` keeps exchanges apart that may overlap.
  OwnerExchange(const Communicator& comm, int64_t count, const WireFormat& wire, std::byte* buffers,
                int tag);

  const ExchangeShape& shape() const { return shape_; }

  // Begins. `weights`: of each rank's part in the sum, the same on every rank; a rank of weight 0
  // sends nothing. `job` stays until Finish.
  void Start(ExchangeJob& job, std::span<const double> weights);
  // Moves on as far as it goes without waiting; elements from `ready_from` on may be read.
  void Advance(int64_t ready_from);
  // Waits for the end. Throws UserError (exit 6) naming who is late to `what`.
  void Finish(const std::string& what);

 private:
  struct Slot {
    std::byte* sent;      // [ranks] encoded parts
    std::byte* received;  // [ranks]
    std::byte* result;    // encoded, of the own chunk
    std::byte* results;   // [ranks]
    std::vector<Link::Ticket> parts, part_sends, result_receives, result_sends;  // kNone: through
  };
  static constexpr Link::Ticket kNone = -1;

  Slot& SlotOf(int64_t stage) { return slots_[stage % static_cast<int64_t>(slots_.size())]; }
  // Stages from the end of the vector.
  int64_t Stage(int64_t turn) const { return shape_.stages - 1 - turn; }
  void Contribute(int64_t turn);
  void Combine(int64_t turn);
  void Apply(int64_t turn);
  bool AllDone(std::vector<Link::Ticket>& tickets);
  bool Step(int64_t ready_from);
  std::vector<int> Late();

  const Communicator comm_;
  ExchangeShape shape_;
  WireFormat wire_;
  int tag_;
  size_t chunk_bytes_;
  std::vector<Slot> slots_;
  float* part_;  // [chunk]
  float* sum_;   // [chunk]
  ExchangeJob* job_ = nullptr;
  std::vector<double> weights_;
  int64_t contributed_ = 0, combined_ = 0, applied_ = 0;  // turns
  int64_t moves_ = 0;
};

// Every rank's x becomes the sum of weights[r] times rank r's x, in f32, the same bits everywhere.
// Where the weights are positive and sum to 1 and all x are equal, x stays as it is, bit for bit.
void AverageInto(OwnerExchange& exchange, std::span<float> x, std::span<const double> weights,
                 const std::string& what);

}  // namespace haversack
