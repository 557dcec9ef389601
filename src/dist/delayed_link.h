// A link with a latency, between ranks of one machine: for measuring what a distant network costs
// where the kernel cannot delay packets.
#pragma once

#include <memory>

#include "dist/link.h"

namespace haversack {

// Each message carries the time at which it was sent, by the machine's clock, and is not received
// before `seconds` have passed since.
std::unique_ptr<Link> DelayLink(std::unique_ptr<Link> link, double seconds);

}  // namespace haversack
