// SIGINT and SIGTERM ask a run to stop at the next step boundary; a second one ends the process at
// once.
#pragma once

namespace haversack {

void InstallStopSignals();
// The signal that asked, or 0.
int StopSignal();

}  // namespace haversack
