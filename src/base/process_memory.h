// What the system says about memory: this process's, the machine's and its control group's.
#pragma once

#include <cstdint>

namespace haversack {

// Resident bytes now (VmRSS), and the most that were ever resident (VmHWM).
int64_t ResidentBytes();
int64_t PeakResidentBytes();

// Bytes that this process could still make resident: what the machine has available, or what its
// control group (v1 or v2) leaves, whichever is less.
int64_t AvailableBytes();

// Returns freed heap pages to the system, so that ResidentBytes is what is really held.
void TrimHeap();

}  // namespace haversack
