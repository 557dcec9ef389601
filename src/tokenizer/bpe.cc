#include "tokenizer/bpe.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

constexpr char32_t kMetaspace = 0x2581;

struct ByteAlphabet {
  std::array<char32_t, 256> chars;
  std::array<int16_t, 0x144> bytes;

  ByteAlphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      chars[b] = printable ? static_cast<char32_t>(b) : next++;
      bytes[chars[b]] = static_cast<int16_t>(b);
    }
  }
};

const ByteAlphabet& Alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

// The bytes that a token stands for; nullopt when a character is outside the byte-level alphabet.
std::optional<std::string> RawBytes(std::string_view token) {
  std::string raw;
  size_t bytes = 0;
  for (size_t at = 0; at < token.size(); at += bytes) {
    const int byte = CharToByte(CharAt(token, at, &bytes));
    if (byte < 0) return std::nullopt;
    raw.push_back(static_cast<char>(byte));
  }
  return raw;
}

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

uint64_t HashPair(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;
  return pair ^ pair >> 32;
}

// A heap's order: the least key comes first.
bool Later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) { return a.key > b.key; }

}  // namespace

char32_t ByteToChar(uint8_t byte) { return Alphabet().chars[byte]; }

int CharToByte(char32_t c) { return c < Alphabet().bytes.size() ? Alphabet().bytes[c] : -1; }

void AppendByteLevel(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) AppendChar(ByteToChar(static_cast<uint8_t>(byte)), out);
}

Bpe::Bpe(BpeConfig config, const std::string& where)
    : fuse_unk_(config.fuse_unk),
      byte_fallback_(config.byte_fallback),
      ignore_merges_(config.ignore_merges) {
  ReadVocab(&config, where);
  ReadMerges(config, where);
  FindByteTokens();
  if (config.unk_token) {
    unk_id_ = Id(*config.unk_token);
    if (!unk_id_) {
      throw UserError(ExitCode::kUsage,
                      "{}: model.unk_token '{}' is not in model.vocab; add it or set it to null",
                      where, OneLine(*config.unk_token));
    }
  }
  splits_before_metaspace_ = NeverMergesIntoMetaspace();
}

void Bpe::ReadVocab(BpeConfig* config, const std::string& where) {
  int32_t highest = -1;
  for (const auto& [token, id] : config->vocab) highest = std::max(highest, id);
  tokens_.resize(highest + 1);
  used_.resize(highest + 1);
  for (auto& [token, id] : config->vocab) {
    if (used_[id]) {
      throw UserError(ExitCode::kUsage,
                      "{}: model.vocab gives id {} to both '{}' and '{}'; ids must differ", where,
                      id, OneLine(tokens_[id]), OneLine(token));
    }
    used_[id] = true;
    tokens_[id] = std::move(token);
  }
  ids_.reserve(tokens_.size());
  for (int32_t id = 0; id <= highest; ++id) {
    if (!used_[id]) continue;
    const std::string& token = tokens_[id];
    ids_.emplace(token, id);
    size_t bytes = 0;
    if (!token.empty() && CharBytes(static_cast<unsigned char>(token[0])) == token.size()) {
      char_ids_.emplace(CharAt(token, 0, &bytes), id);
    }
  }
}

void Bpe::ReadMerges(const BpeConfig& config, const std::string& where) {
  size_t slots = 16;
  while (slots * 2 < config.merges.size() * 3) slots *= 2;
  merges_.resize(slots);
  for (size_t rank = 0; rank < config.merges.size(); ++rank) {
    const auto& [left, right] = config.merges[rank];
    const std::string merged = left + right;
    for (const std::string* token : {&left, &right, &merged}) {
      if (!Id(*token)) {
        throw UserError(
            ExitCode::kUsage,
            "{}: model.merges[{}] ('{}' and '{}') needs the token '{}', which is not in "
            "model.vocab",
            where, rank, OneLine(left), OneLine(right), OneLine(*token));
      }
    }
    AddMerge(*Id(left), *Id(right), {.rank = static_cast<int32_t>(rank), .merged = *Id(merged)});
  }
}

void Bpe::FindByteTokens() {
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = char_ids_.find(ByteToChar(static_cast<uint8_t>(byte)));
    byte_ids_[byte] = found == char_ids_.end() ? -1 : found->second;
    fallback_ids_[byte] = Id(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  if (!ignore_merges_) return;
  for (const auto& [token, id] : ids_) {
    if (std::optional<std::string> raw = RawBytes(token)) raw_ids_.emplace(std::move(*raw), id);
  }
}

bool Bpe::NeverMergesIntoMetaspace() const {
  if (!char_ids_.contains(kMetaspace)) return false;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    bool after_other = false;
    size_t bytes = 0;
    for (size_t at = 0; at < tokens_[id].size(); at += bytes) {
      const bool is_metaspace = CharAt(tokens_[id], at, &bytes) == kMetaspace;
      if (is_metaspace && after_other) return false;
      after_other = !is_metaspace;
    }
  }
  return true;
}

// A pair listed twice keeps its last rank.
void Bpe::AddMerge(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = PairKey(left, right);
  size_t slot = HashPair(pair) & (merges_.size() - 1);
  while (merges_[slot].pair != kEmptySlot && merges_[slot].pair != pair) {
    slot = (slot + 1) & (merges_.size() - 1);
  }
  merges_[slot] = {.pair = pair, .merge = merge};
}

Bpe::Merge Bpe::FindMerge(int32_t left, int32_t right) const {
  const uint64_t pair = PairKey(left, right);
  size_t slot = HashPair(pair) & (merges_.size() - 1);
  while (merges_[slot].pair != pair) {
    if (merges_[slot].pair == kEmptySlot) return {};
    slot = (slot + 1) & (merges_.size() - 1);
  }
  return merges_[slot].merge;
}

std::optional<int32_t> Bpe::Id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Bpe::Token(int32_t id) const {
  return id >= 0 && id < size() && used_[id] ? &tokens_[id] : nullptr;
}

void Bpe::EncodeWord(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* out) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    if (const auto id = Id(word)) {
      out->push_back(*id);
      return;
    }
  }
  if (!splits_before_metaspace_ || word.size() <= WordCache::kMaxWordBytes) {
    EncodeUncached(word, scratch, out);
    return;
  }
  // The word is a whole text where nothing splits it: encode it in pieces that repeat.
  size_t begin = 0;
  bool after_other = false;
  size_t bytes = 0;
  for (size_t at = 0; at < word.size(); at += bytes) {
    const bool is_metaspace = CharAt(word, at, &bytes) == kMetaspace;
    if (is_metaspace && after_other) {
      EncodeUncached(word.substr(begin, at - begin), scratch, out);
      begin = at;
    }
    after_other = !is_metaspace;
  }
  EncodeUncached(word.substr(begin), scratch, out);
}

// Merges the symbols of `word`, or remembers the result.
void Bpe::EncodeUncached(std::string_view word, BpeScratch* scratch,
                         std::vector<int32_t>* out) const {
  const bool cached = word.size() <= WordCache::kMaxWordBytes;
  const uint64_t hash = cached ? WordCache::Hash(word) : 0;
  if (cached && scratch->cache.Find(word, hash, out)) return;
  scratch->symbols.clear();
  AppendSymbols(word, /*drop_unknown=*/false, &scratch->symbols);
  MergeSymbols(scratch);
  const size_t before = out->size();
  EmitSymbols(*scratch, out);
  if (cached) scratch->cache.Insert(word, hash, std::span(*out).subspan(before));
}

void Bpe::EncodeBytes(std::string_view bytes, BpeScratch* scratch,
                      std::vector<int32_t>* out) const {
  if (bytes.empty()) return;
  const bool cached = bytes.size() <= WordCache::kMaxWordBytes;
  const uint64_t hash = cached ? WordCache::Hash(bytes) : 0;
  if (cached && scratch->cache.Find(bytes, hash, out)) return;
  const size_t before = out->size();
  const auto whole = ignore_merges_ ? raw_ids_.find(std::string(bytes)) : raw_ids_.end();
  if (ignore_merges_ && whole != raw_ids_.end()) {
    out->push_back(whole->second);
  } else {
    scratch->symbols.clear();
    bool complete = true;
    for (const char byte : bytes) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
      complete = complete && id >= 0;
      scratch->symbols.push_back({.id = id});
    }
    if (!complete) {
      WarnOnce(bytes);
      scratch->symbols.clear();
      scratch->spelled.clear();
      AppendByteLevel(bytes, &scratch->spelled);
      AppendSymbols(scratch->spelled, /*drop_unknown=*/true, &scratch->symbols);
    }
    MergeSymbols(scratch);
    EmitSymbols(*scratch, out);
  }
  if (cached) scratch->cache.Insert(bytes, hash, std::span(*out).subspan(before));
}

void Bpe::WarnOnce(std::string_view bytes) const {
  if (unk_id_ || warned_.exchange(true)) return;
  const auto missing = std::ranges::find_if(
      bytes, [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)] < 0; });
  fmt::print(
      stderr,
      "warning: byte 0x{:02X} has no token, and model.unk_token is null; such bytes are left "
      "out of every text\n",
      static_cast<uint8_t>(*missing));
}

// All bytes of a character, or none.
bool Bpe::AppendFallback(std::string_view character,
                         std::vector<BpeScratch::Symbol>* symbols) const {
  if (!byte_fallback_) return false;
  for (const char byte : character) {
    if (fallback_ids_[static_cast<uint8_t>(byte)] < 0) return false;
  }
  for (const char byte : character) {
    symbols->push_back({.id = fallback_ids_[static_cast<uint8_t>(byte)]});
  }
  return true;
}

void Bpe::AppendSymbols(std::string_view word, bool drop_unknown,
                        std::vector<BpeScratch::Symbol>* symbols) const {
  // An unknown character waits for the next one to be fused with; bytes of a fallback do not end
  // the wait, and so come before it, as in the reference implementation.
  bool unknown_waits = false;
  size_t bytes = 0;
  for (size_t at = 0; at < word.size(); at += bytes) {
    const char32_t c = CharAt(word, at, &bytes);
    const auto found = char_ids_.find(c);
    if (found != char_ids_.end()) {
      if (unknown_waits) symbols->push_back({.id = *unk_id_});
      unknown_waits = false;
      symbols->push_back({.id = found->second});
      continue;
    }
    const std::string_view character = word.substr(at, bytes);
    if (AppendFallback(character, symbols)) continue;
    if (!unk_id_) {
      if (drop_unknown) continue;
      throw UserError(ExitCode::kUsage,
                      "character '{}' (U+{:04X}) has no token, and model.unk_token is null; remove "
                      "the character or use a tokenizer that covers it",
                      OneLine(character), static_cast<uint32_t>(c));
    }
    if (unknown_waits && !fuse_unk_) symbols->push_back({.id = *unk_id_});
    unknown_waits = true;
  }
  if (unknown_waits) symbols->push_back({.id = *unk_id_});
}

void Bpe::MergeSymbols(BpeScratch* scratch) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch->symbols;
  std::vector<BpeScratch::Candidate>& heap = scratch->heap;
  HAVERSACK_CHECK(symbols.size() <= std::numeric_limits<int32_t>::max(), "{} symbols in a word",
                  symbols.size());
  const auto count = static_cast<int32_t>(symbols.size());
  heap.clear();
  const auto candidate = [&](int32_t left, const Merge& merge) {
    return BpeScratch::Candidate{
        .key = uint64_t{static_cast<uint32_t>(merge.rank)} << 32 | static_cast<uint32_t>(left),
        .merged = merge.merged};
  };
  for (int32_t i = 0; i < count; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < count ? i + 1 : -1;
    symbols[i].alive = true;
    if (i + 1 == count) break;
    const Merge merge = FindMerge(symbols[i].id, symbols[i + 1].id);
    if (merge.rank >= 0) heap.push_back(candidate(i, merge));
  }
  std::make_heap(heap.begin(), heap.end(), Later);
  const auto push = [&](int32_t left) {
    const Merge merge = FindMerge(symbols[left].id, symbols[symbols[left].next].id);
    if (merge.rank < 0) return;
    heap.push_back(candidate(left, merge));
    std::push_heap(heap.begin(), heap.end(), Later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), Later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(static_cast<uint32_t>(top.key));
    BpeScratch::Symbol& left = symbols[at];
    if (!left.alive || left.next < 0) continue;
    BpeScratch::Symbol& right = symbols[left.next];
    // Stale unless the pair that stands here now makes the same token.
    const Merge now = FindMerge(left.id, right.id);
    if (now.rank < 0 || now.merged != top.merged) continue;
    left.id = top.merged;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) symbols[left.next].previous = at;
    if (left.previous >= 0) push(left.previous);
    if (left.next >= 0) push(at);
  }
}

void Bpe::EmitSymbols(const BpeScratch& scratch, std::vector<int32_t>* out) const {
  for (const BpeScratch::Symbol& symbol : scratch.symbols) {
    if (symbol.alive) out->push_back(symbol.id);
  }
}

}  // namespace haversack
