#include "data/dataset.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "data/chat_style.h"
#include "data/token_cache.h"
#include "data/tokenize_corpus.h"

namespace haversack {
namespace {

// Everything that the tokens depend on.
std::string StoreKey(const std::vector<CorpusFile>& files, const DataOptions& options,
                     const ChatStyle& style) {
  Hasher hasher;
  hasher.AddNumber(kTokenStoreVersion);
  hasher.AddField(HashCorpusFiles(files));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const auto path = std::filesystem::path(options.model_dir) / name;
    std::error_code error;
    hasher.AddField(std::filesystem::exists(path, error) ? ReadWholeFile(path.string()) : "");
  }
  hasher.AddField(style.default_system.value_or(""));
  hasher.AddNumber(style.default_system.has_value());
  hasher.AddNumber(style.thinking);
  hasher.AddNumber(static_cast<uint64_t>(options.rules.eos_id));
  hasher.AddNumber(static_cast<uint64_t>(options.rules.bos_id));
  return hasher.Hex();
}

}  // namespace

Dataset Dataset::Open(const DataOptions& options, const Encoder& encoder) {
  std::vector<CorpusFile> files = ListCorpusFiles(options.files);
  const ChatStyle style = LoadChatStyle(options.model_dir);
  const std::string key = StoreKey(files, options, style);
  const auto build = [&](const std::string& folder) {
    StoreWriter writer(folder, encoder.vocab_size);
    TokenizeCorpus(files, encoder, style, options.rules,
                   {options.log, options.poll, options.memory}, writer);
    writer.Finish(key);
    malloc_trim(
        0);  // the batches' memory goes back to the system: the budget counts resident bytes
  };
  TokenStore store = OpenOrBuildStore(
      key, {options.cache_folder, options.fallback_folder, options.log, options.poll}, build);
  Dataset dataset(std::move(store), options, std::move(files));
  if (dataset.targets() == 0 || dataset.sequences() == 0) {
    const StoreInfo& info = dataset.store_.info();
    throw UserError(
        ExitCode::kUsage,
        "{}: nothing to predict in {} tokens ({} records without text, {} with nothing to predict "
        "are left out); give more data",
        dataset.files_[0].path, info.tokens, info.empty_records, info.targetless_records);
  }
  return dataset;
}

Dataset::Dataset(TokenStore store, const DataOptions& options, std::vector<CorpusFile> files)
    : store_(std::move(store)),
      seq_(options.seq),
      cross_document_(options.cross_document),
      seed_(options.seed),
      files_(std::move(files)),
      packing_(store_, seq_, cross_document_) {}

uint64_t Dataset::targets() const {
  const StoreInfo& info = store_.info();
  if (!cross_document_ || info.tokens == 0) return info.targets;
  uint8_t first;
  store_.ReadLearned(0, 1, &first);  // the stream's first token has none before it, seams or not
  return info.targets + info.first_targets - first;
}

std::string Dataset::Summary() const {
  const StoreInfo& info = store_.info();
  std::string text = fmt::format("{} documents, {} tokens, {} targets, {} sequences of {}",
                                 info.documents, info.tokens, targets(), sequences(), seq_);
  if (info.empty_records > 0) {
    text += fmt::format("; left out: {} records with empty text", info.empty_records);
  }
  if (info.targetless_records > 0) {
    text += fmt::format("; left out: {} records with nothing to predict", info.targetless_records);
  }
  return text;
}

std::string Dataset::hash() const {
  Hasher hasher;
  hasher.AddField(store_.info().key);
  hasher.AddNumber(static_cast<uint64_t>(seq_));
  hasher.AddNumber(cross_document_);
  return hasher.Hex();
}

void Dataset::CheckVocabulary(int64_t rows, const Encoder& encoder) const {
  const StoreInfo& info = store_.info();
  if (info.largest_id < rows) return;
  std::string where = files_.at(info.largest_id_file).path;
  if (info.largest_id_line > 0) where += fmt::format(":{}", info.largest_id_line);
  throw UserError(
      ExitCode::kUsage,
      "{}: token '{}' has id {}, but the model's embedding has {} rows (the tokenizer knows "
      "{} tokens); use the tokenizer the model was made with",
      where, OneLine(encoder.token_text(info.largest_id), 60), info.largest_id, rows,
      encoder.vocab_size);
}

void Dataset::Resize(int64_t count, Batch& out) const {
  const auto size = static_cast<size_t>(count * seq_);
  out.sequences = count;
  out.seq = seq_;
  out.tokens.assign(size, 0);
  out.targets.assign(size, -1);
  out.positions.resize(size);
  out.boundaries.clear();
  out.valid_targets = 0;
}

void Dataset::Fill(uint64_t cursor, int64_t count, Batch& out, int64_t rows) const {
  rows = std::max(rows, count);
  Resize(rows, out);
  const uint64_t n = sequences();
  std::optional<RandomPermutation> order;
  for (int64_t row = 0; row < count; ++row, ++cursor) {
    if (row == 0 || cursor % n == 0) {
      order.emplace(
          n, RandomKey{.seed = seed_, .purpose = RandomPurpose::kShuffle, .step = cursor / n});
    }
    AddSequence(packing_[(*order)(cursor % n)], row, out);
  }
  for (int64_t row = count; row < rows; ++row) AddSequence({}, row, out);
  out.boundaries.push_back(static_cast<int32_t>(rows * seq_));
}

void Dataset::FillInOrder(uint64_t first, int64_t count, Batch& out) const {
  Resize(count, out);
  for (int64_t row = 0; row < count; ++row, ++first) {
    AddSequence(first < sequences() ? packing_[first] : TokenRange{}, row, out);
  }
  out.boundaries.push_back(static_cast<int32_t>(count * seq_));
}

void Dataset::AddSequence(const TokenRange& range, int64_t row, Batch& out) const {
  const auto offset = static_cast<size_t>(row * seq_);
  const uint64_t length = range.end - range.begin;
  if (length > 0) {
    // A position's target is the next token, so the token behind the range is read too.
    const uint64_t with_next = std::min(range.end + 1, tokens()) - range.begin;
    std::vector<int32_t> ids(with_next);
    std::vector<uint8_t> learned(with_next);
    store_.ReadTokens(range.begin, with_next, ids.data());
    store_.ReadLearned(range.begin, with_next, learned.data());
    std::copy_n(ids.begin(), length, out.tokens.begin() + static_cast<ptrdiff_t>(offset));
    for (uint64_t i = 0; i + 1 < with_next; ++i) {
      if (learned[i + 1]) out.targets[offset + i] = ids[i + 1];
    }
  }
  AddSegments(range, row, out);
  for (int64_t i = 0; i < seq_; ++i) {
    out.valid_targets += out.targets[offset + static_cast<size_t>(i)] >= 0;
  }
}

void Dataset::AddSegments(const TokenRange& range, int64_t row, Batch& out) const {
  const auto offset = static_cast<uint64_t>(row * seq_);
  const auto seq = static_cast<uint64_t>(seq_);
  const uint64_t length = range.end - range.begin;
  const auto segment = [&](uint64_t begin, uint64_t end) {  // positions of the sequence
    if (begin == end) return;
    out.boundaries.push_back(static_cast<int32_t>(offset + begin));
    for (uint64_t i = begin; i < end; ++i) {
      out.positions[offset + i] = static_cast<int32_t>(i - begin);
    }
  };
  if (cross_document_) {
    segment(0, length);
  } else if (length > 0) {
    uint64_t document = store_.FindDocument(range.begin);
    for (uint64_t at = range.begin; at < range.end;) {
      const uint64_t some = std::min<uint64_t>(64, documents() - document);
      for (const TokenStore::Document& found : store_.ReadDocuments(document, some)) {
        const uint64_t end = std::min(found.end, range.end);
        segment(at - range.begin, end - range.begin);
        at = end;
        // A document's last token has no next one of its own.
        if (found.end <= range.end) out.targets[offset + found.end - 1 - range.begin] = -1;
        if (at == range.end) break;
      }
      document += some;
    }
  }
  segment(length, seq);
}

}  // namespace haversack
