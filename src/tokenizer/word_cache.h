// A bounded cache from a word to its token ids: direct-mapped, so a word that collides replaces the
// one before it. One cache line an entry, short words only; long ones are rare.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace haversack {

class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 22;
  static constexpr size_t kMaxIds = 10;

  static uint64_t Hash(std::string_view word) {
    uint64_t hash = word.size() * 0x9E3779B97F4A7C15u;
    size_t at = 0;
    for (; at + 8 <= word.size(); at += 8) hash = Mix(hash ^ Load(word.data() + at, 8));
    if (at < word.size()) hash = Mix(hash ^ Load(word.data() + at, word.size() - at));
    return hash;
  }

  // Appends the ids of `word` to `out` if they are known. `word` has at most kMaxWordBytes bytes.
  bool Find(std::string_view word, uint64_t hash, std::vector<int32_t>* out) const {
    if (entries_.empty()) return false;
    const Entry& entry = entries_[hash % kEntries];
    if (entry.ids_used == 0 || entry.bytes_used != word.size() ||
        std::memcmp(entry.bytes.data(), word.data(), word.size()) != 0) {
      return false;
    }
    out->insert(out->end(), entry.ids.begin(), entry.ids.begin() + entry.ids_used);
    return true;
  }

  void Insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    if (ids.empty() || ids.size() > kMaxIds) return;
    if (entries_.empty()) entries_.resize(kEntries);
    Entry& entry = entries_[hash % kEntries];
    entry.bytes_used = static_cast<uint8_t>(word.size());
    entry.ids_used = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.bytes.data(), word.data(), word.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr size_t kEntries = 1 << 15;  // 2 MiB

  struct alignas(64) Entry {
    uint8_t bytes_used = 0;
    uint8_t ids_used = 0;  // 0: the entry is empty
    std::array<char, kMaxWordBytes> bytes;
    std::array<int32_t, kMaxIds> ids;
  };
  static_assert(sizeof(Entry) == 64);

  static uint64_t Load(const char* from, size_t bytes) {
    uint64_t word = 0;
    std::memcpy(&word, from, bytes);
    return word;
  }
  static uint64_t Mix(uint64_t x) {
    const auto product = static_cast<unsigned __int128>(x) * 0xA0761D6478BD642Fu;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  std::vector<Entry> entries_;
};

}  // namespace haversack
