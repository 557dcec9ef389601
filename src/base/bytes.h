// Byte sizes as people write them: "3GiB", "512 MiB", "2.5GB", "4000000".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace haversack {

// Bytes in `text`. Units: none or B, KB/MB/GB/TB (powers of 1000), KiB/MiB/GiB/TiB and K/M/G/T
// (powers of 1024), any case, a fraction allowed. Throws UserError naming `what` (a flag or field)
// otherwise.
uint64_t ParseBytes(std::string_view text, std::string_view what);

// "2.31 GiB", "640 MiB", "12.0 KiB", "17 B".
std::string FormatBytes(uint64_t bytes);

// The least multiple of `alignment` (a power of two) that is at least `bytes`.
constexpr uint64_t AlignUp(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) & ~(alignment - 1);
}

}  // namespace haversack
