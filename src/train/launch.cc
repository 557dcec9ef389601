#include "train/launch.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/error.h"
#include "dist/agreement.h"
#include "dist/delayed_link.h"
#include "dist/mpi_link.h"
#include "dist/prediction.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace haversack {
namespace {

// A rank that fails by itself takes the others with it: they may be waiting for it.
void TrainTogether(const TrainOptions& options, const Communicator& world) {
  const auto give_up = [&](const char* message, ExitCode code) {
    std::fputs(fmt::format("haversack: {}\n", message).c_str(), stderr);
    std::fflush(stderr);
    world.Abort(code);
  };
  try {
    TrainOn(options, world);
    world.Barrier("the end of the run");
  } catch (const AgreedFailure&) {
    throw;
  } catch (const UserError& error) {
    give_up(error.what(), error.code());
  } catch (const std::bad_alloc&) {
    give_up("the system refused memory; close other programs or lower --memory", ExitCode::kBudget);
  } catch (const std::exception& error) {
    give_up(fmt::format("bug: {}; please report it with the command line", error.what()).c_str(),
            ExitCode::kBug);
  }
}

// HAVERSACK_LINK_DELAY=30ms makes ranks of one machine as far apart as that.
std::unique_ptr<Link> OpenLink() {
  std::unique_ptr<Link> link = OpenMpiLink();
  const char* delay = std::getenv("HAVERSACK_LINK_DELAY");
  if (delay == nullptr || *delay == '\0') return link;
  return DelayLink(std::move(link), ParseSeconds(delay, "HAVERSACK_LINK_DELAY"));
}

}  // namespace

void Train(const TrainOptions& options) {
  if (!options.dist.on()) {
    InstallStopSignals();
    return TrainOn(options, Communicator());
  }
  const Communicator world(OpenLink(), {.deadline_seconds = options.dist.deadline_seconds});
  InstallStopSignals();
  if (world.alone()) return TrainOn(options, world);
  TrainTogether(options, world);
}

}  // namespace haversack
