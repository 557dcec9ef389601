// Ranks that end a phase of a run with one result.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "dist/communicator.h"

namespace haversack {

// A failure that all ranks know of: they end in order, with one exit code. The rank that failed
// (the first, where several did) has the message; on the others it is empty, and nobody is told
// twice.
class AgreedFailure : public UserError {
 public:
  AgreedFailure(ExitCode code, const std::string& message) : UserError(code, "{}", message) {}
};

// Runs `work` on every rank and waits until all have. Where it fails with a UserError on any, all
// ranks throw AgreedFailure with the first failing rank's exit code; its message names the rank
// where not all failed. The work must not wait for other ranks after a point where it may fail.
void Together(const Communicator& comm, const std::string& what, const std::function<void()>& work);

// The share of a batch of `total` sequences that rank `rank` of `ranks` takes: [begin, end).
struct BatchShare {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
BatchShare ShareOf(int64_t total, int rank, int ranks);
// The largest share.
int64_t LargestShare(int64_t total, int ranks);

}  // namespace haversack
