// What a run tells: a progress line, a log file, and a metrics file for programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/file.h"

namespace haversack {

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
};

class Reporter {
 public:
  // `log_path` and `metrics_path` may be empty. Metrics of steps after `last_step` are dropped: a resumed
  // run does those again. Throws FileError (exit 5).
  Reporter(const std::string& log_path, const std::string& metrics_path, int64_t last_step,
           uint64_t budget);
  ~Reporter();

  // A line for people: standard error and the log.
  void Line(const std::string& text);
  // A step done. On a terminal one line is rewritten; elsewhere a line every few seconds, and for the
  // first and the last step. A metrics line that cannot be written is an error (exit 5).
  void Step(const StepReport& report);
  void Evaluation(int64_t step, double loss, int64_t tokens);

 private:
  void WriteMetrics(const nlohmann::json& record);
  void ClearProgress();

  std::FILE* log_ = nullptr;
  File metrics_;
  uint64_t metrics_end_ = 0;
  uint64_t budget_;
  bool terminal_;
  bool progress_shown_ = false;
  double seconds_per_step_ = 0;
  std::chrono::steady_clock::time_point last_line_;
};

}  // namespace haversack
