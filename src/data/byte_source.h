// The bytes of a file, decompressed on the way where its name ends in .gz or .zst.
//
//   auto source = ByteSource::Open("corpus.txt.zst");
//   while (uint64_t n = source->Read(buffer, sizeof(buffer))) ...
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace haversack {

class ByteSource {
 public:
  // Missing file: UserError (exit 2).
  static std::unique_ptr<ByteSource> Open(const std::string& path);
  virtual ~ByteSource() = default;

  // Up to `count` bytes; 0 only at the end. A compressed file that is cut off, damaged or no
  // compressed file at all is a UserError (exit 2) naming it.
  virtual uint64_t Read(char* out, uint64_t count) = 0;
};

// `path` without .gz or .zst at its end.
std::string WithoutCompression(const std::string& path);

}  // namespace haversack
