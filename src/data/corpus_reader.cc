#include "data/corpus_reader.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"

namespace haversack {
namespace {

constexpr size_t kTextPiece = 256 << 10;
// Text without a safe cut is read on up to here, and then cut between two characters.
constexpr size_t kLongestTextPiece = 16 << 20;

bool HasContent(const std::string& text) {
  return text.find_first_not_of(" \t\r\n\v\f") != std::string::npos;
}

}  // namespace

bool CorpusReader::Next(CorpusPiece& piece) {
  for (; file_ < files_.size(); ++file_) {
    piece.file = file_;
    const bool records = files_[file_].kind == FileKind::kRecords;
    if (records ? NextRecord(piece) : NextText(piece)) return true;
    if (!any_content_) {
      throw UserError(ExitCode::kUsage, "{}: the file is empty or blank; there is nothing to learn",
                      files_[file_].path);
    }
    any_content_ = false;
    records_.reset();
    text_.reset();
  }
  return false;
}

bool CorpusReader::NextRecord(CorpusPiece& piece) {
  if (!records_) records_ = std::make_unique<RecordReader>(files_[file_].path);
  piece.record = piece.first = piece.last = true;
  const bool found = records_->Next(piece.bytes, piece.line);
  any_content_ = any_content_ || found;
  return found;
}

void CorpusReader::FillText(size_t size) {
  size_t filled = buffer_.size();
  if (filled >= size || text_ended_) return;
  buffer_.resize(size);
  while (filled < size && !text_ended_) {
    const uint64_t got = text_->Read(buffer_.data() + filled, size - filled);
    text_ended_ = got == 0;
    filled += got;
  }
  buffer_.resize(filled);
}

size_t CorpusReader::CutText() {
  for (size_t size = kTextPiece;; size *= 2) {
    FillText(size);
    if (text_ended_) return buffer_.size();
    if (const size_t cut = encoder_.safe_cut(buffer_); cut > 0) return cut;
    if (size >= kLongestTextPiece) break;
  }
  size_t cut = buffer_.size();
  while (cut > 1 && (static_cast<unsigned char>(buffer_[cut - 1]) & 0xc0) == 0x80) --cut;
  if (static_cast<unsigned char>(buffer_[cut - 1]) >= 0xc0 && cut > 1) --cut;
  notes_.push_back(
      fmt::format("{}: from line {} on, {} have no place where this tokenizer may be stopped; they "
                  "are cut there, "
                  "and the tokens around the cut may differ from those of the whole text",
                  files_[file_].path, line_, FormatBytes(cut)));
  return cut;
}

bool CorpusReader::NextText(CorpusPiece& piece) {
  if (!text_) {
    text_ = ByteSource::Open(files_[file_].path);
    text_ended_ = text_begun_ = false;
    buffer_.clear();
    line_ = 1;
    FillText(2);
    if (buffer_ == "\xff\xfe" || buffer_ == "\xfe\xff") {
      throw UserError(ExitCode::kUsage, "{}:1: is UTF-16; convert the file to UTF-8",
                      files_[file_].path);
    }
  }
  if (text_ended_ && buffer_.empty()) return false;
  const size_t cut = CutText();
  if (cut == 0) return false;  // an empty file
  piece.bytes.assign(buffer_, 0, cut);
  buffer_.erase(0, cut);
  piece.line = line_;
  piece.record = false;
  piece.first = !text_begun_;
  // The end shows only when reading on gives nothing.
  if (buffer_.empty()) FillText(1);
  piece.last = text_ended_ && buffer_.empty();
  text_begun_ = true;
  line_ += static_cast<uint64_t>(std::count(piece.bytes.begin(), piece.bytes.end(), '\n'));
  any_content_ = any_content_ || HasContent(piece.bytes);
  return true;
}

}  // namespace haversack
