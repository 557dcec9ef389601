#include "base/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace haversack {
namespace {

uint64_t Mix(uint64_t x) {  // SplitMix64's finaliser (Steele et al., OOPSLA 2014)
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

RandomStream::Words RandomStream::words() const {
  // Key: seed and purpose. Counter: block, layer, step.
  const uint64_t key = Mix(key_.seed ^ (uint64_t{static_cast<uint32_t>(key_.purpose)} << 32) ^
                           (uint64_t{static_cast<uint32_t>(key_.purpose)} * 0x2545f491u));
  const uint64_t where = Mix((uint64_t{key_.layer} << 40) ^ key_.step);
  return {.key0 = static_cast<uint32_t>(key),
          .key1 = static_cast<uint32_t>(key >> 32),
          .counter2 = static_cast<uint32_t>(where),
          .counter3 = static_cast<uint32_t>(where >> 32)};
}

std::array<uint32_t, 4> RandomStream::Block(uint64_t block) const {
  const Words w = words();
  uint32_t k0 = w.key0;
  uint32_t k1 = w.key1;
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                               w.counter2, w.counter3};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

double RandomStream::Uniform(uint64_t element) const {
  const std::array<uint32_t, 4> words = Block(element / 2);
  const size_t i = 2 * (element % 2);
  const uint64_t bits = (uint64_t{words[i]} << 32) | words[i + 1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

float RandomStream::Normal(uint64_t element) const {
  const std::array<uint32_t, 4> words = Block(element / 4);
  const size_t pair = (element % 4) / 2 * 2;
  const double u = (words[pair] + 1.0) * 0x1p-32;  // (0, 1]: its logarithm is finite
  const double v = words[pair + 1] * 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * v;
  return static_cast<float>(radius * (element % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

uint64_t RandomStream::Below(uint64_t element, uint64_t bound) const {
  HAVERSACK_CHECK(bound > 0, "bound {}", bound);
  const std::array<uint32_t, 4> words = Block(element);
  const uint64_t bits = (uint64_t{words[0]} << 32) | words[1];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * bound) >> 64);
}

RandomPermutation::RandomPermutation(uint64_t size, const RandomKey& key) : size_(size) {
  HAVERSACK_CHECK(size > 0, "a permutation of nothing");
  const uint32_t bits = std::bit_width(size - 1);
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  const RandomStream stream(key);
  for (size_t i = 0; i < round_keys_.size(); ++i) {
    const std::array<uint32_t, 4> words = stream.Block(i);
    round_keys_[i] = (uint64_t{words[0]} << 32) | words[1];
  }
}

uint64_t RandomPermutation::operator()(uint64_t index) const {
  HAVERSACK_CHECK(index < size_, "index {} of {}", index, size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_;
    uint64_t right = index & mask;
    for (const uint64_t round_key : round_keys_) {
      const uint64_t next = left ^ (Mix(right ^ round_key) & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits_) | right;
  } while (index >= size_);
  return index;
}

}  // namespace haversack
