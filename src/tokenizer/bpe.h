// Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909) of one word: its characters become
// symbols, and the adjacent pair with the lowest merge rank, leftmost first, is merged until none
// is left. A heap of candidate pairs makes that O(n log n) for a word of n characters.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/word_cache.h"

namespace haversack {

// The byte-level alphabet of GPT-2: printable Latin-1 bytes stand for themselves, the others for
// the code points from U+0100 on, in order.
char32_t ByteToChar(uint8_t byte);
// The byte that `c` stands for; -1 when it is outside the alphabet.
int CharToByte(char32_t c);
// Appends the byte-level spelling of `bytes`.
void AppendByteLevel(std::string_view bytes, std::string* out);

// What one encoding call at a time uses: the word cache and working memory.
struct BpeScratch {
  struct Symbol {
    int32_t id = -1;
    int32_t previous = -1;  // -1: the first
    int32_t next = -1;      // -1: the last
    bool alive = true;
  };
  struct Candidate {
    uint64_t key;  // rank in the high half, position of the left symbol in the low half
    int32_t merged;
  };
  WordCache cache;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::string spelled;
};

struct BpeConfig {
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

class Bpe {
 public:
  // `where` begins every error: the file. Throws UserError naming the field.
  Bpe(BpeConfig config, const std::string& where);

  // Appends the ids of one word, valid UTF-8. Throws UserError naming a character that has no token
  // when there is no unknown token.
  void EncodeWord(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* out) const;
  // The same for the byte-level spelling of `bytes`, without spelling it out. Bytes without a token
  // are left out where there is no unknown token, with one warning: byte-level vocabularies of real
  // models lack the bytes that their training text did not have.
  void EncodeBytes(std::string_view bytes, BpeScratch* scratch, std::vector<int32_t>* out) const;

  std::optional<int32_t> Id(std::string_view token) const;
  // nullptr when no token has this id.
  const std::string* Token(int32_t id) const;
  // The highest id + 1.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // True when no merge can join a character to a U+2581 that follows it, so that a text encodes as
  // its pieces between those two do.
  bool splits_before_metaspace() const { return splits_before_metaspace_; }

 private:
  struct Merge {
    int32_t rank = -1;
    int32_t merged = -1;
  };
  struct MergeSlot {
    uint64_t pair = kEmptySlot;
    Merge merge;
  };
  static constexpr uint64_t kEmptySlot = ~uint64_t{0};

  void ReadVocab(BpeConfig* config, const std::string& where);
  void ReadMerges(const BpeConfig& config, const std::string& where);
  void FindByteTokens();
  bool NeverMergesIntoMetaspace() const;
  void AddMerge(int32_t left, int32_t right, Merge merge);
  Merge FindMerge(int32_t left, int32_t right) const;
  void WarnOnce(std::string_view bytes) const;
  void AppendSymbols(std::string_view word, bool drop_unknown,
                     std::vector<BpeScratch::Symbol>* symbols) const;
  bool AppendFallback(std::string_view character, std::vector<BpeScratch::Symbol>* symbols) const;
  void EncodeUncached(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* out) const;
  void MergeSymbols(BpeScratch* scratch) const;
  void EmitSymbols(const BpeScratch& scratch, std::vector<int32_t>* out) const;

  std::vector<std::string> tokens_;  // by id
  std::vector<bool> used_;           // by id
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_map<char32_t, int32_t> char_ids_;
  std::array<int32_t, 256> byte_ids_;      // of the byte-level characters; -1 where there is none
  std::array<int32_t, 256> fallback_ids_;  // of <0x00> to <0xFF>
  std::unordered_map<std::string, int32_t> raw_ids_;  // byte-level tokens by their bytes
  std::vector<MergeSlot> merges_;
  std::optional<int32_t> unk_id_;
  bool fuse_unk_;
  bool byte_fallback_;
  bool ignore_merges_;
  bool splits_before_metaspace_ = false;
  mutable std::atomic<bool> warned_ = false;
};

}  // namespace haversack
