// A corpus as a sequence of pieces small enough to tokenise in parallel: a JSON record each, or a
// stretch of a text file between safe cuts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus_files.h"
#include "data/encoder.h"
#include "data/record_reader.h"

namespace haversack {

struct CorpusPiece {
  std::string bytes;
  uint64_t file = 0;  // index into the corpus files
  uint64_t line = 1;  // on which the piece begins
  bool record = false;
  bool first = true, last = true;  // of its document
};

class CorpusReader {
 public:
  // Both must outlive the reader.
  CorpusReader(const std::vector<CorpusFile>& files, const Encoder& encoder)
      : files_(files), encoder_(encoder) {}

  // The next piece; false at the end. A file without content is a UserError.
  bool Next(CorpusPiece& piece);
  // One line each: texts cut where the tokens may differ from those of the whole.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  bool NextRecord(CorpusPiece& piece);
  bool NextText(CorpusPiece& piece);
  // Fills buffer_ to `size` bytes, or to the end of the file.
  void FillText(size_t size);
  size_t CutText();

  const std::vector<CorpusFile>& files_;
  const Encoder& encoder_;
  std::vector<std::string> notes_;
  uint64_t file_ = 0;
  bool any_content_ = false;  // in this file
  std::unique_ptr<RecordReader> records_;
  std::unique_ptr<ByteSource> text_;
  std::string buffer_;
  bool text_ended_ = false, text_begun_ = false;
  uint64_t line_ = 1;
};

}  // namespace haversack
