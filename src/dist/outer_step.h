// The outer step of local SGD (DiLoCo, Douillard et al., arXiv 2311.08105): after some steps of its
// own each worker m holds theta_m, and with w_m its share of the tokens
//
//   Delta = sum w_m (theta_start - theta_m)        the pseudo-gradient
//   v <- mu v + Delta
//   theta <- theta_start - lr (Delta + mu v)       Nesterov momentum
//
// Differences travel in the transport's format; the owner of a piece averages in f32, keeps that
// piece of v, and sends the update in the same format, from which all workers, itself included,
// take it: they end with the same bits. At 4 bits both sides keep what rounding left and add it to
// the next round's numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/owner_exchange.h"
#include "dist/wire_format.h"
#include "exec/model_state.h"
#include "graph/graph.h"

namespace haversack {

// The padding between parameters, which stays zero whatever the transport makes of it.
struct Gap {
  int64_t begin = 0, end = 0;  // elements
};
std::vector<Gap> GapsOf(const Graph& graph, const ParamLayout& layout);

class OuterStep {
 public:
  struct Options {
    double lr = 0.7;
    double momentum = 0.9;
    WireFormat wire;
  };

  // Bytes of everything that it keeps, among `ranks` workers.
  static int64_t Bytes(int64_t count, int ranks, const WireFormat& wire);

  // `memory`: Bytes, zero; 64-byte aligned. Its start is the same however many the ranks.
  OuterStep(const Communicator& comm, int64_t count, std::vector<Gap> gaps, const Options& options,
            std::byte* memory);

  // What the next outer step starts from: [count].
  std::span<float> start() { return start_; }
  // The pieces of v that this rank owns, put together: chunk after chunk of shape().
  std::span<float> momentum() { return momentum_; }
  // What this rank's differences, and its owned updates, still owe; empty where nothing is fed
  // back.
  std::span<float> part_error() { return part_error_; }
  std::span<float> owner_error() { return owner_error_; }
  const ExchangeShape& shape() const { return exchange_.shape(); }
  const Options& options() const { return options_; }

  // `weights` [count] become start(); no momentum, nothing owed.
  void Reset(const float* weights);
  // Replaces `weights`, and start(), by the outcome of the step. `tokens`: learned by each rank; at
  // least one has some. Throws UserError (exit 6) where a rank is late.
  void Run(float* weights, std::span<const int64_t> tokens, const std::string& what);

 private:
  class Job;

  Communicator comm_;
  std::vector<Gap> gaps_;
  Options options_;
  std::span<float> start_, part_error_, momentum_, owner_error_;
  OwnerExchange exchange_;
};

// `v` of a vector of `shape.count` elements gathers what rank `owner` owns of it (`owned`), and the
// other way round.
void PutOwned(const ExchangeShape& shape, int owner, std::span<const float> owned,
              std::span<float> v);
void TakeOwned(const ExchangeShape& shape, int owner, std::span<const float> v,
               std::span<float> owned);

}  // namespace haversack
