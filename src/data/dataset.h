// A corpus as training and evaluation see it: sequences of `seq` positions, cut as packing.h says,
// in a deterministic order that a single number, the cursor, points into.
//
//   const Dataset data = Dataset::Open(options, EncoderOf(tokenizer));
//   Batch batch;
//   data.Fill(cursor, 4, batch);  // and cursor += 4
//
// Cursor c is sequence c % n of epoch c / n, n = sequences(). Each epoch is another permutation of
// all sequences, so a batch at the end of an epoch goes on with the next one, and every sequence is
// used once before any is used again.
//
// Text is never evaluated otherwise than it was trained on, but for the end token: with
// rules.eos_id < 0 a text file in file order is cut into windows of `seq` inputs, so that every
// token but the first is predicted once (what `eval` reports).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus_files.h"
#include "data/encoder.h"
#include "data/packing.h"
#include "data/record.h"
#include "data/token_store.h"

namespace haversack {

// `sequences` x `seq` positions, row by row.
struct Batch {
  int64_t sequences = 0, seq = 0;
  std::vector<int32_t> tokens;     // [sequences * seq]; 0 where padded
  std::vector<int32_t> targets;    // [sequences * seq]; -1: nothing to predict
  std::vector<int32_t> positions;  // [sequences * seq]; from 0 in each segment
  std::vector<int32_t>
      boundaries;  // where segments begin, then sequences * seq; padding is one too
  int64_t valid_targets = 0;
};

struct DataOptions {
  std::vector<std::string> files;  // and folders
  int64_t seq = 0;
  bool cross_document =
      false;          // one segment a sequence, and the seams between documents are targets
  uint64_t seed = 0;  // of the order
  DocumentRules rules;
  std::string model_dir;  // its tokenizer's files and chat template
  // Nothing: no cache. Fallback: where the tokens go if the cache cannot be used.
  std::optional<std::string> cache_folder;
  std::string fallback_folder = ".";
  int64_t memory = int64_t{1} << 40;  // bytes that tokenising may take
  std::function<void(const std::string&)> log;
  std::function<void()> poll;  // called now and then while tokenising; may throw to stop
};

class Dataset {
 public:
  // Tokenises what the cache does not hold. Data without anything to predict is a UserError.
  static Dataset Open(const DataOptions& options, const Encoder& encoder);

  int64_t seq() const { return seq_; }
  // Sequences an epoch.
  uint64_t sequences() const { return packing_.sequences(); }
  uint64_t tokens() const { return store_.info().tokens; }
  uint64_t documents() const { return store_.info().documents; }
  // Targets an epoch.
  uint64_t targets() const;
  // "120 documents, 51,234 tokens, 101 sequences of 512; left out: 3 records with empty text".
  std::string Summary() const;
  // Identity of the data as the sequences present it: files' content, tokenizer, rules, seq.
  std::string hash() const;

  // Throws UserError naming both sizes and the token, if a token of the corpus has no row in an
  // embedding of `rows`.
  void CheckVocabulary(int64_t rows, const Encoder& encoder) const;

  // Sequences cursor .. cursor + count in the shuffled order, then padding up to `rows` sequences.
  void Fill(uint64_t cursor, int64_t count, Batch& out, int64_t rows = 0) const;
  // Sequences first .. first + count of the corpus's own order; those past the end are padding.
  void FillInOrder(uint64_t first, int64_t count, Batch& out) const;

 private:
  Dataset(TokenStore store, const DataOptions& options, std::vector<CorpusFile> files);

  void Resize(int64_t count, Batch& out) const;
  void AddSequence(const TokenRange& range, int64_t row, Batch& out) const;
  void AddSegments(const TokenRange& range, int64_t row, Batch& out) const;

  TokenStore store_;
  int64_t seq_;
  bool cross_document_;
  uint64_t seed_;
  std::vector<CorpusFile> files_;
  Packing packing_;
};

}  // namespace haversack
