// XXH64 (Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): a fast 64-bit
// checksum for cache keys and for telling damaged files. Not for adversaries.
//
//   Hasher hasher;
//   hasher.Add(bytes, count);
//   std::string key = hasher.Hex();
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace haversack {

class Hasher {
 public:
  explicit Hasher(uint64_t seed = 0);

  void Add(const void* data, uint64_t count);
  // A field of a key: its length goes in too, so that neighbouring fields cannot run together.
  void AddField(std::string_view text);
  void AddNumber(uint64_t number) { Add(&number, sizeof(number)); }

  // Of everything added so far; more may follow.
  uint64_t Digest() const;
  // The digest as 16 hexadecimal digits.
  std::string Hex() const;

 private:
  void AddStripe(const unsigned char* stripe);

  uint64_t seed_;
  std::array<uint64_t, 4> lanes_;
  std::array<unsigned char, 32> pending_{};
  uint64_t total_ = 0;
};

}  // namespace haversack
