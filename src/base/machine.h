// What this process runs on, in words: for the start line and for keys of measured costs.
#pragma once

#include <string>

namespace haversack {

std::string CpuModel();  // "Intel(R) Xeon(R) Processor"
std::string CpuIsa();    // the widest vector extension that counts here: "AVX2", "AVX-512+BF16"

// Whether the CPU multiplies bf16 matrices in tiles (AMX).
bool CpuHasBF16Tiles();

}  // namespace haversack
