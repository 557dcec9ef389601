// What a run tells: a progress line, a log file, and a metrics file for programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/file.h"

namespace haversack {

// What a distributed run adds.
struct DistReport {
  int64_t round = 0;  // outer steps done before this step; ddp: the steps
  int64_t batch = 0;  // sequences of this step, over the ranks that share it
  int64_t workers = 1;
  int64_t trainer = 0;   // whose step this is
  int64_t trainers = 1;  // that there are
  // So far, of the rank that writes.
  int64_t syncs = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  double wait_s = 0;
};

struct StepReport {
  int64_t step = 0;  // counted from 1
  int64_t steps = 0;
  std::optional<double> loss;  // none: no target in this step
  int64_t tokens = 0;          // targets
  double lr = 0;
  double grad_norm = 0;
  double step_s = 0;
  double tokens_per_s = 0;  // positions processed
  int64_t live_peak_bytes = 0;
  int64_t predicted_peak_bytes = 0;
  int64_t rss_peak_bytes = 0;
  std::string plan;
  bool skipped = false;
  std::optional<DistReport> dist;  // in distributed runs
};

class Reporter {
 public:
  // `log_path` may be empty; the log is continued where it is. Throws FileError (exit 5), as every
  // write to the log or the metrics does. `silent`: of a run of several ranks one tells.
  Reporter(const std::string& log_path, uint64_t budget, bool silent = false);
  ~Reporter();

  // Metrics go to `path` from now on. What it holds of steps 1 to `last_step` stays, all else is
  // dropped: a run that starts at 0 starts the file anew, a resumed one does the steps after
  // `last_step` again. The file is cut in place, so that no kill loses a line of a step that is
  // done.
  void OpenMetrics(const std::string& path, int64_t last_step);
  // Waits until the metrics so far have reached the disk.
  void SyncMetrics();

  // A line for people: standard error and the log.
  void Line(const std::string& text);
  // A step done. On a terminal one line is rewritten; elsewhere a line every few seconds, and for
  // the first and the last step. A metrics line that cannot be written is an error (exit 5).
  void Step(const StepReport& report);
  void Evaluation(int64_t step, double loss, int64_t tokens);

 private:
  void WriteMetrics(const nlohmann::json& record);
  void WriteLog(const std::string& text);
  void ClearProgress();

  File log_;
  uint64_t log_end_ = 0;
  File metrics_;
  uint64_t metrics_end_ = 0;
  uint64_t budget_;
  bool silent_;
  bool terminal_;
  bool progress_shown_ = false;
  double seconds_per_step_ = 0;
  std::chrono::steady_clock::time_point last_line_;
};

}  // namespace haversack
