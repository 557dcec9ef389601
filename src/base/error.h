// Two kinds of failure, never mixed:
//
//   throw UserError(ExitCode::kUsage, "{}:{}: field 'text' is missing; every record needs one", f,
//   n); HAVERSACK_CHECK(offset % 64 == 0, "offset {} of value {}", offset, name);
//
// A UserError is the user's to act on: one line that says what is wrong, where, and what to do. A
// failed check is a bug in Haversack.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace haversack {

// The process's exit status; scripts depend on the numbers.
enum class ExitCode : int {
  kOk = 0,
  kBug = 1,       // a bug in Haversack
  kUsage = 2,     // bad input or usage
  kBudget = 3,    // does not fit the memory budget
  kDiverged = 4,  // training diverged
  kDevice = 5,    // a file or device failed: disk full, unreadable
  kPeer = 6,      // a peer was lost
};

class UserError : public std::runtime_error {
 public:
  template <typename... Args>
  UserError(ExitCode code, fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)), code_(code) {}

  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// The device or file failure that `errno` describes: "cannot <what> <path>: <reason>". ENOSPC adds
// how many bytes are free. Always exit code 5.
UserError FileError(const std::string& what, const std::string& path, int error_number);

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void FailCheck(const char* file, int line, const char* expression,
                            const std::string& message);

#define HAVERSACK_CHECK(condition, ...)                                                   \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::haversack::FailCheck(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)

}  // namespace haversack
