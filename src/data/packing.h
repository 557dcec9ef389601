// How the token stream of a corpus is cut into sequences of `seq` positions.
//
// Documents follow each other in file order. Plain text is cut wherever a sequence is full; the
// document goes on in the next one. A record of a prompt and its answer is kept whole where it fits
// into a sequence: it begins a new one if the rest of this one is too short, and that rest is
// padding. One that is longer than a sequence is cut into pieces counted from its end, so that the
// answer keeps as much of the prompt as fits; pieces in which nothing is learned are left out. So
// every target of the corpus is predicted exactly once an epoch.
//
// With cross_document the stream is cut every `seq` tokens, whatever the documents.
#pragma once

#include <cstdint>
#include <vector>

#include "data/token_store.h"

namespace haversack {

struct TokenRange {
  uint64_t begin = 0, end = 0;  // tokens of the stream; end - begin <= seq
};

class Packing {
 public:
  // Reads the store's documents once where some are kept whole (16 bytes a sequence are then held),
  // else nothing.
  Packing(const TokenStore& store, int64_t seq, bool cross_document);

  uint64_t sequences() const { return count_; }
  TokenRange operator[](uint64_t index) const;

 private:
  void BuildTable(const TokenStore& store);
  void Push();
  void AddDocument(const TokenStore& store, const TokenStore::Document& document);
  void AddLong(const TokenStore& store, const TokenStore::Document& document);

  uint64_t seq_;
  uint64_t tokens_;
  uint64_t count_ = 0;
  std::vector<TokenRange> table_;  // empty: cut evenly
  TokenRange open_;                // the sequence being filled
  bool open_targets_ = false;      // it has something to predict
};

}  // namespace haversack
