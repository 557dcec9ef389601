// Cuts a file of JSON records into the records' texts: one a line, or the elements of one array.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/byte_source.h"

namespace haversack {

// The longest record, in bytes: what bounds the memory of a reader.
inline constexpr uint64_t kLongestRecord = 16u << 20;

// Lines end at \n alone: U+2028 and the like are content. A byte-order mark at the start, white
// space around a record and blank lines are none. Line numbers count every line, from 1.
class RecordReader {
 public:
  explicit RecordReader(const std::string& path);

  // The next record's text and the line on which it begins; false at the end. A longer record than
  // kLongestRecord, UTF-16, or a broken array is a UserError naming file and line.
  bool Next(std::string& record, uint64_t& line);

 private:
  bool Get(char& c);  // the next byte; false at the end
  bool SkipBlank();   // to a byte that is not white space, unread; false at the end
  void Start();
  bool NextLine(std::string& record);
  bool NextElement(std::string& record);
  void Append(std::string& record, char c) const;

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  size_t next_ = 0, filled_ = 0;
  uint64_t line_ = 1;         // of the next byte
  uint64_t record_line_ = 1;  // of the record being read
  bool started_ = false;
  enum class Array { kNone, kOpen, kAfterElement, kClosed } array_ = Array::kNone;
};

}  // namespace haversack
