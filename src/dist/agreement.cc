#include "dist/agreement.h"

#include <algorithm>
#include <optional>

namespace haversack {

void Together(const Communicator& comm, const std::string& what,
              const std::function<void()>& work) {
  if (comm.alone()) return work();
  struct Status {
    int8_t failed;
    int8_t code;
  } mine = {0, 0};
  std::optional<UserError> failure;
  try {
    work();
  } catch (const AgreedFailure&) {
    throw;
  } catch (const UserError& error) {
    failure = error;
    mine = {1, static_cast<int8_t>(error.code())};
  }
  const std::vector<Status> all = comm.AllGather(mine, what);
  const auto failed = [](const Status& s) { return s.failed != 0; };
  const auto first = std::find_if(all.begin(), all.end(), failed);
  if (first == all.end()) return;
  const auto code = static_cast<ExitCode>(first->code);
  if (first - all.begin() != comm.rank()) throw AgreedFailure(code, "");
  if (std::all_of(all.begin(), all.end(), failed)) throw AgreedFailure(code, failure->what());
  throw AgreedFailure(code,
                      fmt::format("rank {}: {}", comm.world_rank(comm.rank()), failure->what()));
}

BatchShare ShareOf(int64_t total, int rank, int ranks) {
  return {.begin = total * rank / ranks, .end = total * (rank + 1) / ranks};
}

int64_t LargestShare(int64_t total, int ranks) { return (total + ranks - 1) / ranks; }

}  // namespace haversack
