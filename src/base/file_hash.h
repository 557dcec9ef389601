// The checksum of a file's content.
#pragma once

#include <cstdint>
#include <string>

#include "base/file.h"
#include "base/hash.h"

namespace haversack {

// Adds every byte of `file` and returns how many there are. Reads through a buffer of 256 KiB.
uint64_t AddContent(const File& file, Hasher& hasher);

}  // namespace haversack
