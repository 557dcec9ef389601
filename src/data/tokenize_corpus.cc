#include "data/tokenize_corpus.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>

#include "base/bytes.h"
#include "base/error.h"
#include "base/threads.h"
#include "data/corpus_reader.h"

namespace haversack {
namespace {

// A batch holds up to this much text, or what memory allows but never less than the least.
constexpr int64_t kBatchBytes = 4 << 20;
constexpr int64_t kLeastBatchBytes = 256 << 10;
// Working memory of a byte of text: its tokens take up to four bytes and their marks one, vectors
// that grow hold them up to three times, and the text is there as read and as parsed.
constexpr int64_t kWorkPerByte = 20;
constexpr size_t kBatchPieces = 8192;
constexpr std::chrono::seconds kLogEvery{10};

// Offset of the first byte that is not UTF-8 (RFC 3629: no surrogates, nothing overlong); nothing
// if all is well.
std::optional<size_t> FindBadUtf8(std::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || i + length > text.size()) return i;
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return i;
    }
    const unsigned char second = byte(i + 1);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
      return i;
    }
    i += length;
  }
  return std::nullopt;
}

class CorpusTokenizer {
 public:
  CorpusTokenizer(const std::vector<CorpusFile>& files, const Encoder& encoder,
                  const ChatStyle& style, const DocumentRules& rules, const TokenizeHooks& hooks,
                  StoreWriter& store)
      : files_(files),
        encoder_(encoder),
        style_(style),
        rules_(rules),
        hooks_(hooks),
        store_(store),
        reader_(files, encoder),
        batch_bytes_(std::clamp(hooks.memory / kWorkPerByte, kLeastBatchBytes, kBatchBytes)) {}

  void Run() {
    std::vector<CorpusPiece> batch;
    size_t bytes = 0;
    CorpusPiece piece;
    while (reader_.Next(piece)) {
      CheckLength(piece);
      bytes += piece.bytes.size();
      batch.push_back(std::move(piece));
      piece = {};
      if (bytes < static_cast<size_t>(batch_bytes_) && batch.size() < kBatchPieces) continue;
      RunBatch(batch, bytes);
      batch.clear();
      bytes = 0;
    }
    RunBatch(batch, bytes);
    for (const std::string& note : reader_.notes()) Log(note);
  }

 private:
  struct Outcome {
    TokenizedRecord record;
    std::exception_ptr failure;
  };

  void CheckLength(const CorpusPiece& piece) const {
    const auto work = static_cast<int64_t>(piece.bytes.size()) * kWorkPerByte;
    if (work <= std::max(hooks_.memory, kLeastBatchBytes * kWorkPerByte)) return;
    throw UserError(
        ExitCode::kBudget,
        "{}:{}: does not fit: this {} of {} takes about {} to tokenise, and --memory leaves "
        "{}; raise --memory or split it",
        files_[piece.file].path, piece.line, piece.record ? "record" : "text",
        FormatBytes(piece.bytes.size()), FormatBytes(work), FormatBytes(hooks_.memory));
  }

  void Log(const std::string& line) const {
    if (hooks_.log) hooks_.log(line);
  }

  void RunBatch(std::vector<CorpusPiece>& batch, size_t bytes) {
    std::vector<Outcome> outcomes(batch.size());
    ParallelTasks(static_cast<int64_t>(batch.size()), [&](int64_t task, int) {
      const auto i = static_cast<size_t>(task);
      try {
        outcomes[i].record = Tokenize(batch[i]);
      } catch (...) {
        outcomes[i].failure =
            std::current_exception();  // the first in order is reported, not in time
      }
      std::string().swap(batch[i].bytes);
    });
    for (size_t i = 0; i < batch.size(); ++i) {
      if (outcomes[i].failure) std::rethrow_exception(outcomes[i].failure);
      Store(batch[i], outcomes[i].record);
      outcomes[i] = {};
    }
    if (hooks_.poll) hooks_.poll();
    done_ += bytes;
    const auto now = std::chrono::steady_clock::now();
    if (now - logged_ < kLogEvery) return;
    logged_ = now;
    Log(fmt::format("tokenised {} into {} tokens so far", FormatBytes(done_),
                    store_.info().tokens));
  }

  // Tokenises a piece; an error of the tokenizer's own gets the file and line it does not know.
  TokenizedRecord Tokenize(const CorpusPiece& piece) const {
    const std::string& path = files_[piece.file].path;
    try {
      return TokenizeWhole(piece);
    } catch (const UserError& error) {
      if (std::string_view(error.what()).starts_with(path + ":")) throw;
      throw UserError(error.code(), "{}:{}: {}", path, LineOfFailure(piece), error.what());
    }
  }

  uint64_t LineOfFailure(const CorpusPiece& piece) const {
    uint64_t line = piece.line;
    if (piece.record) return line;
    for (std::string_view rest = piece.bytes; !rest.empty(); ++line) {
      const size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
      try {
        encoder_.encode(rest.substr(0, end));
      } catch (const UserError&) {
        return line;
      }
      rest.remove_prefix(end);
    }
    return piece.line;
  }

  TokenizedRecord TokenizeWhole(const CorpusPiece& piece) const {
    const std::string& path = files_[piece.file].path;
    if (piece.record) {
      return TokenizeRecord(piece.bytes, fmt::format("{}:{}", path, piece.line), encoder_, style_,
                            rules_);
    }
    if (const auto bad = FindBadUtf8(piece.bytes)) {
      const auto line =
          std::count(piece.bytes.begin(), piece.bytes.begin() + static_cast<ptrdiff_t>(*bad), '\n');
      throw UserError(
          ExitCode::kUsage, "{}:{}: byte 0x{:02x} is not UTF-8; convert the file to UTF-8", path,
          piece.line + static_cast<uint64_t>(line), static_cast<unsigned char>(piece.bytes[*bad]));
    }
    TokenizedRecord result;
    if (piece.first && rules_.bos_id >= 0) result.marked.Add(rules_.bos_id, false);
    result.marked.Add(encoder_.encode(piece.bytes), true);
    const bool ended =
        !result.marked.tokens.empty() && result.marked.tokens.back() == rules_.eos_id;
    if (piece.last && rules_.eos_id >= 0 && !ended) result.marked.Add(rules_.eos_id, true);
    return result;
  }

  void Store(const CorpusPiece& piece, const TokenizedRecord& record) {
    if (record.fate == RecordFate::kEmptyText) ++store_.info().empty_records;
    if (record.fate == RecordFate::kNothingToLearn) ++store_.info().targetless_records;
    if (record.fate != RecordFate::kKept) return;
    store_.SetOrigin(piece.file, piece.record ? piece.line : 0);
    store_.Add(record.marked.tokens, record.marked.learned);
    if (piece.last) store_.EndDocument(record.whole);
  }

  const std::vector<CorpusFile>& files_;
  const Encoder& encoder_;
  const ChatStyle& style_;
  const DocumentRules& rules_;
  const TokenizeHooks& hooks_;
  StoreWriter& store_;
  CorpusReader reader_;
  int64_t batch_bytes_;
  uint64_t done_ = 0;
  std::chrono::steady_clock::time_point logged_ = std::chrono::steady_clock::now();
};

}  // namespace

void TokenizeCorpus(const std::vector<CorpusFile>& files, const Encoder& encoder,
                    const ChatStyle& style, const DocumentRules& rules, const TokenizeHooks& hooks,
                    StoreWriter& store) {
  CorpusTokenizer(files, encoder, style, rules, hooks, store).Run();
}

}  // namespace haversack
