// The tokens of a corpus on disk, in a folder of its own:
//
//   tokens.bin     token ids, 2 bytes each for vocabularies up to 65536, else 4
//   learned.bin    one bit a token: is it to be predicted? Absent where all are
//   documents.bin  8 bytes a document: where it begins (bit 63: packing keeps it whole); the end
//   store.json     sizes, checksums, counts; written last
//
// Read with pread into the caller's buffers: nothing of the corpus stays in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"

namespace haversack {

// Raise when the format changes, or what tokenisation makes of equal input.
inline constexpr int kTokenStoreVersion = 1;

struct StoreInfo {
  std::string key;  // identity: of the data, the tokenizer, the rules
  uint64_t tokens = 0;
  uint64_t documents = 0;
  uint64_t token_bytes = 4;
  bool has_mask = false;       // some tokens are not to be predicted
  bool has_whole = false;      // some documents are kept whole
  uint64_t targets = 0;        // tokens to be predicted that have one before them in their document
  uint64_t first_targets = 0;  // documents whose first token is to be predicted, seams allowed
  uint64_t empty_records = 0;  // left out: empty text
  uint64_t targetless_records = 0;  // left out: nothing to learn
  int32_t largest_id = -1;
  uint64_t largest_id_file = 0;  // where the largest id stood first: index into the corpus files,
  uint64_t largest_id_line = 0;  // line of the record, 0 for plain text
};

class StoreWriter {
 public:
  // Creates the files in `folder`, which exists.
  StoreWriter(const std::string& folder, int32_t vocab_size);

  // More tokens of the document at hand. `learned`: one a token, or empty for all.
  void Add(std::span<const int32_t> tokens, std::span<const uint8_t> learned);
  // Where the tokens of the next Add come from, for messages about the largest id.
  void SetOrigin(uint64_t file, uint64_t line);
  // Ends the document at hand, if it holds any token.
  void EndDocument(bool whole);
  StoreInfo& info() { return info_; }
  // Writes the rest, syncs, and puts store.json in place.
  void Finish(const std::string& key);

 private:
  // Appends to a file through a buffer and keeps its checksum.
  struct Column {
    File file;
    Hasher hasher;
    std::string buffer;
    uint64_t written = 0;
    void Append(const void* data, uint64_t count);
    void Flush();
  };

  void AddBit(bool bit);

  std::string folder_;
  StoreInfo info_;
  Column tokens_, learned_, documents_;
  uint64_t document_begin_ = 0;
  uint8_t bits_ = 0;
  uint64_t origin_file_ = 0, origin_line_ = 0;
};

class TokenStore {
 public:
  // Checks version, key, sizes and checksums. Anything wrong is a UserError.
  static TokenStore Open(const std::string& folder, const std::string& key);

  const StoreInfo& info() const { return info_; }
  // Tokens [begin, begin + count).
  void ReadTokens(uint64_t begin, uint64_t count, int32_t* out) const;
  // 1 for each that is to be predicted.
  void ReadLearned(uint64_t begin, uint64_t count, uint8_t* out) const;

  struct Document {
    uint64_t begin = 0, end = 0;
    bool whole = false;
  };
  // Documents [first, first + count).
  std::vector<Document> ReadDocuments(uint64_t first, uint64_t count) const;
  // Index of the document that holds the token.
  uint64_t FindDocument(uint64_t token) const;

 private:
  StoreInfo info_;
  File tokens_, learned_, documents_;
};

}  // namespace haversack
