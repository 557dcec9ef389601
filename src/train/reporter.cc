#include "train/reporter.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
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

// The part of a metrics file that a run resumed after `last_step` keeps.
std::string KeptMetrics(const std::string& path, int64_t last_step) {
  if (last_step == 0 || !std::filesystem::exists(path)) return "";
  const std::string all = ReadWholeFile(path, uint64_t{1} << 32);
  std::string kept;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = all.find('\n', begin);
    if (end == std::string::npos) break;  // a line that was cut short
    const std::string line = all.substr(begin, end + 1 - begin);
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object() && record.value("step", last_step + 1) <= last_step) kept += line;
    begin = end + 1;
  }
  return kept;
}

}  // namespace

Reporter::Reporter(const std::string& log_path, const std::string& metrics_path, int64_t last_step,
                   uint64_t budget)
    : budget_(budget), terminal_(isatty(STDERR_FILENO) != 0) {
  if (!log_path.empty()) {
    log_ = std::fopen(log_path.c_str(), "a");
    if (log_ == nullptr) throw FileError("write", log_path, errno);
  }
  if (!metrics_path.empty()) {
    const std::string kept = KeptMetrics(metrics_path, last_step);
    metrics_ = File::Create(metrics_path);
    metrics_.WriteAt(kept.data(), kept.size(), 0);
    metrics_end_ = kept.size();
  }
}

Reporter::~Reporter() {
  ClearProgress();
  if (log_ != nullptr) std::fclose(log_);
}

void Reporter::ClearProgress() {
  if (progress_shown_) std::fputs("\r\033[K", stderr);
  progress_shown_ = false;
}

void Reporter::Line(const std::string& text) {
  ClearProgress();
  fmt::print(stderr, "{}\n", text);
  if (log_ != nullptr) {
    fmt::print(log_, "{}\n", text);
    std::fflush(log_);
  }
}

void Reporter::WriteMetrics(const nlohmann::json& record) {
  if (!metrics_.is_open()) return;
  const std::string line = record.dump() + "\n";
  metrics_.WriteAt(line.data(), line.size(), metrics_end_);
  metrics_end_ += line.size();
}

void Reporter::Step(const StepReport& r) {
  WriteMetrics({{"step", r.step},
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
                {"skipped", r.skipped}});
  // The first step is slower than the rest; the estimate follows the recent ones.
  seconds_per_step_ = seconds_per_step_ == 0 ? r.step_s : 0.8 * seconds_per_step_ + 0.2 * r.step_s;
  const std::string loss = r.loss ? fmt::format("{:.4f}", *r.loss) : "no targets";
  const std::string line = fmt::format(
      "step {}/{}  loss {}  {:.0f} tokens/s  {} left  memory {} of {}", r.step, r.steps, loss,
      r.tokens_per_s, Duration(seconds_per_step_ * static_cast<double>(r.steps - r.step)),
      FormatBytes(static_cast<uint64_t>(r.rss_peak_bytes)), FormatBytes(budget_));
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}", line);
    std::fflush(stderr);
    progress_shown_ = true;
  } else if (now - last_line_ >= kLineInterval || r.step == r.steps || r.step == 1) {
    fmt::print(stderr, "{}\n", line);
    last_line_ = now;
  }
  if (log_ != nullptr) {
    fmt::print(log_, "{}\n", line);
    std::fflush(log_);
  }
}

void Reporter::Evaluation(int64_t step, double loss, int64_t tokens) {
  Line(fmt::format("step {}: held-out loss {:.4f}, perplexity {:.2f}, over {} tokens", step, loss,
                   std::exp(loss), tokens));
}

}  // namespace haversack
