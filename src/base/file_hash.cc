#include "base/file_hash.h"

#include <vector>

namespace haversack {

uint64_t AddContent(const File& file, Hasher& hasher) {
  std::vector<char> buffer(256 << 10);
  uint64_t offset = 0;
  while (const uint64_t got = file.ReadUpTo(buffer.data(), buffer.size(), offset)) {
    hasher.Add(buffer.data(), got);
    offset += got;
  }
  return offset;
}

}  // namespace haversack
