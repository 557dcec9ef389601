#include "data/token_store.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/file_hash.h"
#include "base/json.h"

namespace haversack {
namespace {

constexpr uint64_t kBufferBytes = 256 << 10;
constexpr uint64_t kWholeBit = uint64_t{1} << 63;

// Every number of StoreInfo with its name in store.json: written and read from one table.
template <typename Info, typename Visit>
void VisitNumbers(Info& info, Visit visit) {
  visit("tokens", info.tokens);
  visit("documents", info.documents);
  visit("token_bytes", info.token_bytes);
  visit("has_mask", info.has_mask);
  visit("has_whole", info.has_whole);
  visit("targets", info.targets);
  visit("first_targets", info.first_targets);
  visit("empty_records", info.empty_records);
  visit("targetless_records", info.targetless_records);
  visit("largest_id", info.largest_id);
  visit("largest_id_file", info.largest_id_file);
  visit("largest_id_line", info.largest_id_line);
}

// Checks size and checksum on the way.
File OpenColumn(const std::string& path, uint64_t size, const nlohmann::json& checksum) {
  File file = File::Open(path);
  Hasher hasher;
  if (AddContent(file, hasher) != size || checksum != hasher.Hex()) {
    throw UserError(ExitCode::kUsage, "{}: is damaged: size or checksum is not what was written",
                    path);
  }
  return file;
}

}  // namespace

void StoreWriter::Column::Append(const void* data, uint64_t count) {
  buffer.append(static_cast<const char*>(data), count);
  if (buffer.size() >= kBufferBytes) Flush();
}

void StoreWriter::Column::Flush() {
  file.WriteAt(buffer.data(), buffer.size(), written);
  hasher.Add(buffer.data(), buffer.size());
  written += buffer.size();
  buffer.clear();
}

StoreWriter::StoreWriter(const std::string& folder, int32_t vocab_size) : folder_(folder) {
  info_.token_bytes = vocab_size <= 65536 ? 2 : 4;
  tokens_.file = File::Create(folder + "/tokens.bin");
  learned_.file = File::Create(folder + "/learned.bin");
  documents_.file = File::Create(folder + "/documents.bin");
}

void StoreWriter::SetOrigin(uint64_t file, uint64_t line) {
  origin_file_ = file;
  origin_line_ = line;
}

void StoreWriter::AddBit(bool bit) {
  const uint64_t place = info_.tokens % 8;
  bits_ = static_cast<uint8_t>(bits_ | (uint8_t{bit} << place));
  if (place == 7) {
    learned_.Append(&bits_, 1);
    bits_ = 0;
  }
}

void StoreWriter::Add(std::span<const int32_t> tokens, std::span<const uint8_t> learned) {
  HAVERSACK_CHECK(learned.empty() || learned.size() == tokens.size(), "{} marks for {} tokens",
                  learned.size(), tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t id = tokens[i];
    HAVERSACK_CHECK(id >= 0 && (info_.token_bytes == 4 || id < 65536), "token id {}", id);
    if (id > info_.largest_id) {
      info_.largest_id = id;
      info_.largest_id_file = origin_file_;
      info_.largest_id_line = origin_line_;
    }
    tokens_.Append(&id, info_.token_bytes);  // little-endian: the low bytes come first
    const bool learn = learned.empty() || learned[i] != 0;
    AddBit(learn);
    if (!learn) info_.has_mask = true;
    (info_.tokens == document_begin_ ? info_.first_targets : info_.targets) += learn;
    ++info_.tokens;
  }
}

void StoreWriter::EndDocument(bool whole) {
  if (info_.tokens == document_begin_) return;
  const uint64_t entry = document_begin_ | (whole ? kWholeBit : 0);
  documents_.Append(&entry, sizeof(entry));
  info_.has_whole = info_.has_whole || whole;
  ++info_.documents;
  document_begin_ = info_.tokens;
}

void StoreWriter::Finish(const std::string& key) {
  HAVERSACK_CHECK(info_.tokens == document_begin_, "a document without an end");
  info_.key = key;
  documents_.Append(&document_begin_, sizeof(document_begin_));
  if (info_.tokens % 8 != 0) learned_.Append(&bits_, 1);
  for (Column* column : {&tokens_, &learned_, &documents_}) {
    column->Flush();
    column->file.Sync();
    column->file.Close();
  }
  if (!info_.has_mask) std::remove(learned_.file.path().c_str());
  nlohmann::ordered_json json = {
      {"format", "haversack tokens"}, {"version", kTokenStoreVersion}, {"key", key}};
  VisitNumbers(info_, [&json](const char* name, const auto& value) { json[name] = value; });
  json["checksums"] = {{"tokens", tokens_.hasher.Hex()},
                       {"learned", learned_.hasher.Hex()},
                       {"documents", documents_.hasher.Hex()}};
  const std::string text = json.dump(1) + "\n";
  File file = File::Create(folder_ + "/store.json");
  file.WriteAt(text.data(), text.size(), 0);
  file.Sync();
  file.Close();
}

TokenStore TokenStore::Open(const std::string& folder, const std::string& key) {
  const std::string path = folder + "/store.json";
  TokenStore store;
  try {
    const nlohmann::json json = ParseJson(ReadWholeFile(path, 1 << 20), path);
    if (json.at("version") != kTokenStoreVersion || json.at("key") != key) {
      throw UserError(ExitCode::kUsage, "{}: was made by another version or from other data", path);
    }
    store.info_.key = key;
    VisitNumbers(store.info_,
                 [&json](const char* name, auto& value) { json.at(name).get_to(value); });
    const StoreInfo& info = store.info_;
    const nlohmann::json& checksums = json.at("checksums");
    store.tokens_ =
        OpenColumn(folder + "/tokens.bin", info.tokens * info.token_bytes, checksums.at("tokens"));
    store.documents_ =
        OpenColumn(folder + "/documents.bin", (info.documents + 1) * 8, checksums.at("documents"));
    if (info.has_mask) {
      store.learned_ =
          OpenColumn(folder + "/learned.bin", (info.tokens + 7) / 8, checksums.at("learned"));
    }
  } catch (const nlohmann::json::exception&) {
    throw UserError(ExitCode::kUsage, "{}: a field is missing or of the wrong type", path);
  }
  return store;
}

void TokenStore::ReadTokens(uint64_t begin, uint64_t count, int32_t* out) const {
  HAVERSACK_CHECK(begin + count <= info_.tokens, "tokens {} + {} of {}", begin, count,
                  info_.tokens);
  const uint64_t width = info_.token_bytes;
  tokens_.ReadAt(out, count * width, begin * width);
  if (width == 4) return;
  // Widened in place from the back: each target lies at or behind its source.
  const auto* narrow = reinterpret_cast<const unsigned char*>(out);
  for (uint64_t i = count; i-- > 0;) {
    const int32_t id = narrow[2 * i] | (narrow[2 * i + 1] << 8);
    out[i] = id;
  }
}

void TokenStore::ReadLearned(uint64_t begin, uint64_t count, uint8_t* out) const {
  HAVERSACK_CHECK(begin + count <= info_.tokens, "tokens {} + {} of {}", begin, count,
                  info_.tokens);
  if (!info_.has_mask) {
    std::fill_n(out, count, uint8_t{1});
    return;
  }
  if (count == 0) return;
  const uint64_t first = begin / 8;
  std::vector<uint8_t> bytes((begin + count + 7) / 8 - first);
  learned_.ReadAt(bytes.data(), bytes.size(), first);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t bit = begin + i;
    out[i] = (bytes[bit / 8 - first] >> (bit % 8)) & 1;
  }
}

std::vector<TokenStore::Document> TokenStore::ReadDocuments(uint64_t first, uint64_t count) const {
  HAVERSACK_CHECK(first + count <= info_.documents, "documents {} + {} of {}", first, count,
                  info_.documents);
  std::vector<uint64_t> entries(count + 1);
  documents_.ReadAt(entries.data(), entries.size() * 8, first * 8);
  std::vector<Document> documents(count);
  for (uint64_t i = 0; i < count; ++i) {
    documents[i] = {entries[i] & ~kWholeBit, entries[i + 1] & ~kWholeBit,
                    (entries[i] & kWholeBit) != 0};
  }
  return documents;
}

uint64_t TokenStore::FindDocument(uint64_t token) const {
  HAVERSACK_CHECK(token < info_.tokens, "token {} of {}", token, info_.tokens);
  uint64_t low = 0, high = info_.documents;  // the answer lies in [low, high)
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    uint64_t entry;
    documents_.ReadAt(&entry, sizeof(entry), middle * 8);
    ((entry & ~kWholeBit) <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace haversack
