// The files behind --data: what is named itself, and what lies in the folders named.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace haversack {

enum class FileKind {
  kText,     // the file is one document
  kRecords,  // one JSON object a line (or an array of objects)
};

struct CorpusFile {
  std::string path;
  FileKind kind = FileKind::kText;
};

// A file stands for itself: .jsonl, .ndjson and .json hold records, any other name is plain text,
// .gz or .zst behind it or not. A folder stands for the .txt, .jsonl, .ndjson and .json files in it
// and in its folders, sorted by path; hidden ones are left out. A path that is missing or a folder
// with no such file is a UserError (exit 2).
std::vector<CorpusFile> ListCorpusFiles(const std::vector<std::string>& paths);

// A hash of the files' kinds, sizes and bytes in order; their names do not enter.
std::string HashCorpusFiles(const std::vector<CorpusFile>& files);

}  // namespace haversack
