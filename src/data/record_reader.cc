#include "data/record_reader.h"

#include "base/bytes.h"
#include "base/error.h"

namespace haversack {
namespace {

constexpr size_t kBufferBytes = 256 << 10;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

void TrimEnd(std::string& record) {
  while (!record.empty() && IsBlank(record.back())) record.pop_back();
}

}  // namespace

RecordReader::RecordReader(const std::string& path)
    : path_(path), source_(ByteSource::Open(path)), buffer_(kBufferBytes, '\0') {}

bool RecordReader::Get(char& c) {
  if (next_ == filled_) {
    filled_ = source_->Read(buffer_.data(), buffer_.size());
    next_ = 0;
    if (filled_ == 0) return false;
  }
  c = buffer_[next_++];
  if (c == '\n') ++line_;
  return true;
}

bool RecordReader::SkipBlank() {
  char c;
  while (Get(c)) {
    if (IsBlank(c)) continue;
    --next_;  // c is no line feed, so the line number stands
    return true;
  }
  return false;
}

void RecordReader::Start() {
  started_ = true;
  // A compressed source may give its first bytes one by one: collect enough of them to see a mark.
  while (filled_ < 3) {
    const uint64_t got = source_->Read(buffer_.data() + filled_, buffer_.size() - filled_);
    if (got == 0) break;
    filled_ += got;
  }
  const std::string_view head(buffer_.data(), filled_);
  if (head.starts_with("\xff\xfe") || head.starts_with("\xfe\xff")) {
    throw UserError(ExitCode::kUsage, "{}:1: is UTF-16; convert the file to UTF-8", path_);
  }
  if (head.starts_with("\xef\xbb\xbf")) next_ = 3;
  if (!SkipBlank() || buffer_[next_] != '[') return;
  ++next_;
  array_ = Array::kOpen;
}

bool RecordReader::Next(std::string& record, uint64_t& line) {
  record.clear();
  if (!started_) Start();
  const bool found = array_ == Array::kNone ? NextLine(record) : NextElement(record);
  line = record_line_;
  return found;
}

void RecordReader::Append(std::string& record, char c) const {
  if (record.size() >= kLongestRecord) {
    throw UserError(
        ExitCode::kUsage,
        "{}:{}: this record is longer than {}; split it, or give long texts as .txt files", path_,
        record_line_, FormatBytes(kLongestRecord));
  }
  record += c;
}

bool RecordReader::NextLine(std::string& record) {
  if (!SkipBlank()) return false;
  record_line_ = line_;
  char c;
  while (Get(c) && c != '\n') Append(record, c);
  TrimEnd(record);
  return true;
}

// Reads up to the comma or bracket that ends the element; whether the element itself is sound JSON
// is for its parser to say.
bool RecordReader::NextElement(std::string& record) {
  const bool more = SkipBlank();
  record_line_ = line_;
  if (array_ == Array::kClosed) {
    if (!more) return false;
    throw UserError(ExitCode::kUsage, "{}:{}: text after the end of the array", path_,
                    record_line_);
  }
  int depth = 0;
  bool in_string = false, escaped = false;
  char c;
  while (Get(c)) {
    if (in_string) {
      in_string = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth > 0 && (c == '}' || c == ']')) {
      --depth;
    } else if (depth == 0 && (c == ',' || c == ']')) {
      TrimEnd(record);
      const bool ends = c == ']';
      if (record.empty() && !(ends && array_ == Array::kOpen)) {
        throw UserError(ExitCode::kUsage, "{}:{}: an element of the array is missing", path_,
                        record_line_);
      }
      array_ = ends ? Array::kClosed : Array::kAfterElement;
      return !record.empty() || NextElement(record);
    }
    Append(record, c);
  }
  throw UserError(ExitCode::kUsage,
                  "{}:{}: the file begins with '[', but the array has no end; write one record a "
                  "line, or close it",
                  path_, record_line_);
}

}  // namespace haversack
