#include "data/packing.h"

#include <algorithm>

#include "base/error.h"

namespace haversack {
namespace {

constexpr uint64_t kDocumentsAtOnce = 4096;

// Whether a token of (begin, end], inside a document that ends at `document_end`, is learned.
bool AnyTarget(const TokenStore& store, const TokenRange& piece, uint64_t document_end) {
  const uint64_t last = std::min(piece.end + 1, document_end);
  if (last <= piece.begin + 1) return false;
  std::vector<uint8_t> learned(last - piece.begin - 1);
  store.ReadLearned(piece.begin + 1, learned.size(), learned.data());
  return std::find(learned.begin(), learned.end(), 1) != learned.end();
}

}  // namespace

Packing::Packing(const TokenStore& store, int64_t seq, bool cross_document)
    : seq_(static_cast<uint64_t>(seq)), tokens_(store.info().tokens) {
  HAVERSACK_CHECK(seq >= 1, "seq {}", seq);
  // With one position a sequence, the ends of documents would be sequences without a target.
  if (!cross_document && (store.info().has_whole || seq == 1)) {
    BuildTable(store);
    count_ = table_.size();
    return;
  }
  count_ = tokens_ / seq_;
  // A rest of one token has no next one to predict.
  if (tokens_ % seq_ > 1) ++count_;
}

TokenRange Packing::operator[](uint64_t index) const {
  HAVERSACK_CHECK(index < count_, "sequence {} of {}", index, count_);
  if (!table_.empty()) return table_[index];
  return {index * seq_, std::min((index + 1) * seq_, tokens_)};
}

void Packing::Push() {
  if (open_targets_) table_.push_back(open_);
  open_ = {open_.end, open_.end};
  open_targets_ = false;
}

void Packing::BuildTable(const TokenStore& store) {
  const uint64_t documents = store.info().documents;
  for (uint64_t first = 0; first < documents; first += kDocumentsAtOnce) {
    const uint64_t count = std::min(kDocumentsAtOnce, documents - first);
    for (const TokenStore::Document& document : store.ReadDocuments(first, count)) {
      AddDocument(store, document);
    }
  }
  Push();
}

void Packing::AddDocument(const TokenStore& store, const TokenStore::Document& document) {
  const uint64_t length = document.end - document.begin;
  if (document.whole) {
    if (length > seq_) return AddLong(store, document);
    if (length > seq_ - (open_.end - open_.begin)) Push();
    open_.end = document.end;
    open_targets_ = true;  // the store keeps no record without a target
    return;
  }
  for (uint64_t at = document.begin; at < document.end;) {
    if (open_.end - open_.begin == seq_) Push();
    const uint64_t taken = std::min(document.end - at, seq_ - (open_.end - open_.begin));
    // All but the document's last token has a next one, which in plain text is always learned.
    open_targets_ = open_targets_ || at + 1 < document.end;
    at += taken;
    open_.end = at;
  }
}

void Packing::AddLong(const TokenStore& store, const TokenStore::Document& document) {
  Push();
  uint64_t begin = document.begin;
  uint64_t end = begin + (document.end - begin - 1) % seq_ + 1;  // the first piece is the short one
  while (begin < document.end) {
    open_ = {begin, end};
    open_targets_ = AnyTarget(store, open_, document.end);
    begin = end;
    end += seq_;
    Push();
  }
}

}  // namespace haversack
