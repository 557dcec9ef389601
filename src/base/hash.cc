#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace haversack {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ull;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ull;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ull;
constexpr uint64_t kStripe = 32;

template <typename T>
T Load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

uint64_t Round(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

}  // namespace

Hasher::Hasher(uint64_t seed)
    : seed_(seed), lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1} {}

void Hasher::AddStripe(const unsigned char* stripe) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i] = Round(lanes_[i], Load<uint64_t>(stripe + 8 * i));
  }
}

void Hasher::Add(const void* data, uint64_t count) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const uint64_t held = total_ % kStripe;
  total_ += count;
  if (held > 0) {
    const uint64_t taken = std::min(kStripe - held, count);
    std::copy_n(bytes, taken, pending_.begin() + held);
    bytes += taken;
    count -= taken;
    if (held + taken < kStripe) return;
    AddStripe(pending_.data());
  }
  for (; count >= kStripe; bytes += kStripe, count -= kStripe) AddStripe(bytes);
  std::copy_n(bytes, count, pending_.begin());
}

void Hasher::AddField(std::string_view text) {
  AddNumber(text.size());
  Add(text.data(), text.size());
}

uint64_t Hasher::Digest() const {
  uint64_t hash = seed_ + kPrime5;
  if (total_ >= kStripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += total_;
  const unsigned char* next = pending_.data();
  uint64_t rest = total_ % kStripe;
  for (; rest >= 8; next += 8, rest -= 8) {
    hash = std::rotl(hash ^ Round(0, Load<uint64_t>(next)), 27) * kPrime1 + kPrime4;
  }
  if (rest >= 4) {
    hash = std::rotl(hash ^ Load<uint32_t>(next) * kPrime1, 23) * kPrime2 + kPrime3;
    next += 4;
    rest -= 4;
  }
  for (; rest > 0; ++next, --rest) hash = std::rotl(hash ^ *next * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::string Hasher::Hex() const { return fmt::format("{:016x}", Digest()); }

}  // namespace haversack
