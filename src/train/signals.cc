#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

namespace haversack {
namespace {

volatile sig_atomic_t stop_signal = 0;

void OnSignal(int signal) {
  if (stop_signal != 0) _exit(128 + signal);
  stop_signal = signal;
}

}  // namespace

void InstallStopSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a closed pipe is a write error, not a death
}

int StopSignal() { return stop_signal; }

}  // namespace haversack
