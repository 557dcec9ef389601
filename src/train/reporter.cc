#include "train/reporter.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "base/bytes.h"
#include "base/error.h"

namespace haversack {
namespace {

constexpr std::chrono::seconds kLineInterval(5);

std::string Duration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

nlohmann::json FiniteOrNull(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

constexpr uint64_t kReadBytes = 64 << 10;

// Standard error may be closed or a full disk; a run goes on without it.
void Tell(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

// Whether `line` is the record of a step up to `last_step`.
bool IsRecordUpTo(const std::string& line, int64_t last_step) {
  const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
  return record.is_object() && record.contains("step") && record["step"].is_number_integer() &&
         record["step"].get<int64_t>() <= last_step;
}

// How many bytes at the start of a metrics file are whole lines of steps up to `last_step`.
uint64_t KeptMetrics(const std::string& path, int64_t last_step) {
  std::error_code error;
  if (last_step == 0 || !std::filesystem::is_regular_file(path, error)) return 0;
  const File file = File::Open(path);
  std::string text(kReadBytes, '\0');
  std::string line;
  uint64_t kept = 0;
  uint64_t offset = 0;
  while (const uint64_t got = file.ReadUpTo(text.data(), text.size(), offset)) {
    offset += got;
    for (const char c : std::string_view(text).substr(0, got)) {
      line += c;
      if (c != '\n') continue;
      if (!IsRecordUpTo(line, last_step)) return kept;
      kept += line.size();
      line.clear();
    }
  }
  return kept;
}

}  // namespace

Reporter::Reporter(const std::string& log_path, uint64_t budget, bool silent)
    : budget_(budget), silent_(silent), terminal_(!silent && isatty(STDERR_FILENO) != 0) {
  if (log_path.empty()) return;
  log_ = File::Update(log_path);
  log_end_ = log_.Size();
}

void Reporter::OpenMetrics(const std::string& path, int64_t last_step) {
  metrics_end_ = KeptMetrics(path, last_step);
  metrics_ = File::Update(path);
  metrics_.Truncate(metrics_end_);
}

void Reporter::SyncMetrics() {
  if (metrics_.is_open()) metrics_.Sync();
}

Reporter::~Reporter() { ClearProgress(); }

void Reporter::ClearProgress() {
  if (progress_shown_) Tell("\r\033[K");
  progress_shown_ = false;
}

void Reporter::Line(const std::string& text) {
  if (silent_) return;
  ClearProgress();
  Tell(text + "\n");
  WriteLog(text);
}

void Reporter::WriteLog(const std::string& text) {
  if (!log_.is_open()) return;
  log_.WriteAt((text + "\n").data(), text.size() + 1, log_end_);
  log_end_ += text.size() + 1;
}

void Reporter::WriteMetrics(const nlohmann::json& record) {
  if (!metrics_.is_open()) return;
  const std::string line = record.dump() + "\n";
  try {
    metrics_.WriteAt(line.data(), line.size(), metrics_end_);
  } catch (...) {
    metrics_.Truncate(metrics_end_);  // no half line for a program to stumble over
    throw;
  }
  metrics_end_ += line.size();
}

void Reporter::Step(const StepReport& r) {
  if (silent_) return;
  nlohmann::json record = {{"step", r.step},
                           {"loss", r.loss ? FiniteOrNull(*r.loss) : nlohmann::json()},
                           {"tokens", r.tokens},
                           {"lr", r.lr},
                           {"grad_norm", FiniteOrNull(r.grad_norm)},
                           {"step_s", r.step_s},
                           {"tokens_per_s", r.tokens_per_s},
                           {"live_peak_bytes", r.live_peak_bytes},
                           {"predicted_peak_bytes", r.predicted_peak_bytes},
                           {"rss_peak_bytes", r.rss_peak_bytes},
                           {"plan", r.plan},
                           {"skipped", r.skipped}};
  if (r.dist) {
    record["round"] = r.dist->round;
    record["batch"] = r.dist->batch;
    record["workers"] = r.dist->workers;
    record["trainer"] = r.dist->trainer;
    record["trainers"] = r.dist->trainers;
    record["syncs"] = r.dist->syncs;
    record["bytes_sent"] = r.dist->bytes_sent;
    record["bytes_received"] = r.dist->bytes_received;
    record["wait_s"] = r.dist->wait_s;
  }
  WriteMetrics(record);
  // The first step is slower than the rest; the estimate follows the recent ones.
  seconds_per_step_ = seconds_per_step_ == 0 ? r.step_s : 0.8 * seconds_per_step_ + 0.2 * r.step_s;
  const std::string loss = r.loss ? fmt::format("{:.4f}", *r.loss) : "no targets";
  const std::string line = fmt::format(
      "step {}/{}  loss {}  {:.0f} tokens/s  {} left  memory {} of {}", r.step, r.steps, loss,
      r.tokens_per_s, Duration(seconds_per_step_ * static_cast<double>(r.steps - r.step)),
      FormatBytes(static_cast<uint64_t>(r.rss_peak_bytes)), FormatBytes(budget_));
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    Tell("\r\033[K" + line);
    progress_shown_ = true;
  } else if (now - last_line_ >= kLineInterval || r.step == r.steps || r.step == 1) {
    Tell(line + "\n");
    last_line_ = now;
  }
  WriteLog(line);
}

void Reporter::Evaluation(int64_t step, double loss, int64_t tokens) {
  Line(fmt::format("step {}: held-out loss {:.4f}, perplexity {:.2f}, over {} tokens", step, loss,
                   std::exp(loss), tokens));
}

}  // namespace haversack
