// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A number depends on its key and position only, never on threads, tiles or the
// order of calls, so a recomputed or resumed computation draws the same ones.
//
//   RandomStream stream({.seed = 1, .purpose = RandomPurpose::kInit, .layer = 3, .step = 0});
//   float z = stream.Normal(element);
#pragma once

#include <array>
#include <cstdint>

namespace haversack {

// What the numbers are for. Values are part of saved runs: never renumber.
enum class RandomPurpose : uint32_t {
  kInit = 1,        // random weights
  kShuffle = 2,     // order of the data
  kSampling = 3,    // generation
  kRounding = 4,    // stochastic rounding of codecs
  kProjection = 5,  // low-rank projections
  kTest = 99,
};

struct RandomKey {
  uint64_t seed = 0;
  RandomPurpose purpose = RandomPurpose::kTest;
  uint32_t layer = 0;
  uint64_t step = 0;
};

class RandomStream {
 public:
  explicit RandomStream(const RandomKey& key) : key_(key) {}

  // What Philox is keyed with, for kernels that draw many numbers at once: its two key words, and
  // the two upper words of its counter, of which `block` is the lower two.
  struct Words {
    uint32_t key0, key1, counter2, counter3;
  };
  Words words() const;

  // Four independent uniform words at position `block`.
  std::array<uint32_t, 4> Block(uint64_t block) const;
  // A uniform word at position `element`.
  uint32_t Bits(uint64_t element) const { return Block(element / 4)[element % 4]; }
  // Uniform in [0, 1).
  double Uniform(uint64_t element) const;
  // Standard normal (Box-Muller).
  float Normal(uint64_t element) const;
  // Uniform in [0, bound), bound > 0, without modulo bias beyond 2^-32.
  uint64_t Below(uint64_t element, uint64_t bound) const;

 private:
  RandomKey key_;
};

// A pseudo-random permutation of [0, size) in O(1) memory: a Feistel network over the least even
// number of bits that covers `size`, walked until the value falls inside (cycle walking).
class RandomPermutation {
 public:
  RandomPermutation(uint64_t size, const RandomKey& key);
  uint64_t operator()(uint64_t index) const;
  uint64_t size() const { return size_; }

 private:
  uint64_t size_;
  uint32_t half_bits_;
  std::array<uint64_t, 6> round_keys_;
};

}  // namespace haversack
