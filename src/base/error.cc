#include "base/error.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/bytes.h"

namespace haversack {

UserError FileError(const std::string& what, const std::string& path, int error_number) {
  std::string reason = std::strerror(error_number);
  if (error_number == ENOSPC || error_number == EDQUOT) {
    std::filesystem::path folder = std::filesystem::path(path).parent_path();
    struct statvfs stat;
    if (statvfs(folder.empty() ? "." : folder.c_str(), &stat) == 0) {
      reason += fmt::format(" ({} free)", FormatBytes(uint64_t{stat.f_bavail} * stat.f_frsize));
    }
  }
  return UserError(ExitCode::kDevice, "cannot {} {}: {}", what, path, reason);
}

void FailCheck(const char* file, int line, const char* expression, const std::string& message) {
  throw InternalError(fmt::format("{}:{}: check failed: {} ({})", file, line, expression, message));
}

}  // namespace haversack
