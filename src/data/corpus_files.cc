#include "data/corpus_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/file_hash.h"
#include "data/byte_source.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

bool HoldsRecords(const std::string& path) {
  const std::string name = WithoutCompression(path);
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") || name.ends_with(".json");
}

std::vector<std::string> ListFolder(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  while (!error && entry != end) {
    const std::string path = entry->path().string();
    const bool hidden = entry->path().filename().string().starts_with(".");
    if (hidden && entry->is_directory()) entry.disable_recursion_pending();
    if (!hidden && entry->is_regular_file() &&
        (HoldsRecords(path) || WithoutCompression(path).ends_with(".txt"))) {
      found.push_back(path);
    }
    entry.increment(error);
  }
  if (error) throw FileError("list", folder, error.value());
  if (found.empty()) {
    throw UserError(ExitCode::kUsage,
                    "{}: this folder holds no .txt, .jsonl, .ndjson or .json file, plain or .gz or "
                    ".zst",
                    folder);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<CorpusFile> ListCorpusFiles(const std::vector<std::string>& paths) {
  std::vector<CorpusFile> files;
  const auto add = [&files](const std::string& path) {
    std::error_code error;
    if (fs::exists(path, error) && !fs::is_regular_file(path, error)) {
      throw UserError(ExitCode::kUsage,
                      "{}: is no regular file; data is read more than once, so pipes do not work",
                      path);
    }
    files.push_back({path, HoldsRecords(path) ? FileKind::kRecords : FileKind::kText});
  };
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      add(path);
      continue;
    }
    for (const std::string& found : ListFolder(path)) add(found);
  }
  if (files.empty()) throw UserError(ExitCode::kUsage, "no data: name at least one file");
  return files;
}

std::string HashCorpusFiles(const std::vector<CorpusFile>& files) {
  Hasher hasher;
  for (const CorpusFile& corpus_file : files) {
    const File file = File::Open(corpus_file.path);
    hasher.AddNumber(static_cast<uint64_t>(corpus_file.kind));
    // Equal bytes read differently under another name: the decompressor is chosen by it.
    hasher.AddField(corpus_file.path.substr(WithoutCompression(corpus_file.path).size()));
    hasher.AddNumber(AddContent(file, hasher));
  }
  return hasher.Hex();
}

}  // namespace haversack
