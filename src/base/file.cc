#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace haversack {
namespace {

constexpr uint64_t kLargestCall = 1u << 30;  // Linux moves at most 2 GiB - 4 KiB a call

int OpenRetrying(const std::string& path, int flags) {
  int descriptor;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

}  // namespace

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) ::close(descriptor_);
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

File File::Open(const std::string& path) {
  File file;
  file.path_ = path;
  file.descriptor_ = OpenRetrying(path, O_RDONLY);
  if (file.descriptor_ < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw UserError(ExitCode::kUsage, "{}: no such file; check the path", path);
    }
    throw FileError("open", path, errno);
  }
  struct stat stat;
  if (::fstat(file.descriptor_, &stat) == 0 && S_ISDIR(stat.st_mode)) {
    throw UserError(ExitCode::kUsage, "{}: is a folder where a file is needed", path);
  }
  return file;
}

File File::Create(const std::string& path) {
  File file;
  file.path_ = path;
  file.descriptor_ = OpenRetrying(path, O_RDWR | O_CREAT | O_TRUNC);
  if (file.descriptor_ < 0) throw FileError("create", path, errno);
  return file;
}

File File::Update(const std::string& path) {
  File file;
  file.path_ = path;
  file.descriptor_ = OpenRetrying(path, O_RDWR | O_CREAT);
  if (file.descriptor_ < 0) throw FileError("write", path, errno);
  return file;
}

uint64_t File::Size() const {
  struct stat stat;
  if (::fstat(descriptor_, &stat) != 0) throw FileError("read the size of", path_, errno);
  return static_cast<uint64_t>(stat.st_size);
}

uint64_t File::ReadUpTo(void* out, uint64_t count, uint64_t offset) const {
  uint64_t done = 0;
  while (done < count) {
    const ssize_t got = ::pread(descriptor_, static_cast<char*>(out) + done,
                                std::min(count - done, kLargestCall), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError("read", path_, errno);
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  return done;
}

void File::ReadAt(void* out, uint64_t count, uint64_t offset) const {
  const uint64_t got = ReadUpTo(out, count, offset);
  if (got != count) {
    throw UserError(ExitCode::kUsage, "{}: ends at byte {}, but {} bytes are needed from byte {}",
                    path_, offset + got, count, offset);
  }
}

void File::WriteAt(const void* data, uint64_t count, uint64_t offset) {
  uint64_t done = 0;
  while (done < count) {
    const char* from = static_cast<const char*>(data) + done;
    const uint64_t some = std::min(count - done, kLargestCall);
    ssize_t put = ::pwrite(descriptor_, from, some, offset + done);
    if (put < 0 && errno == ESPIPE) put = ::write(descriptor_, from, some);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == ENOSPC || errno == EDQUOT)) {
      const int error_number = errno;
      throw FileError("write " + FormatBytes(count - done) + " to", path_, error_number);
    }
    if (put < 0) throw FileError("write", path_, errno);
    done += static_cast<uint64_t>(put);
  }
}

void File::Truncate(uint64_t size) {
  int result;
  do {
    result = ::ftruncate(descriptor_, static_cast<off_t>(size));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EINVAL) throw FileError("cut", path_, errno);
}

void File::Reserve(uint64_t size) {
  if (size == 0) return;
  int result;
  do {
    result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(size));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    throw FileError("write " + FormatBytes(size) + " to", path_, errno);
  }
}

void File::Sync() {
  int result;
  do {
    result = ::fsync(descriptor_);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EINVAL && errno != EROFS) throw FileError("write", path_, errno);
}

void File::Close() {
  if (descriptor_ < 0) return;
  // A network file system may report a full disk only here. EINTR has closed the file all the same.
  const int result = ::close(std::exchange(descriptor_, -1));
  if (result != 0 && errno != EINTR) throw FileError("write", path_, errno);
}

std::string ReadWholeFile(const std::string& path, uint64_t limit) {
  const File file = File::Open(path);
  const uint64_t size = file.Size();
  if (size > limit) {
    throw UserError(ExitCode::kUsage, "{}: is {} long; at most {} are expected of such a file",
                    path, FormatBytes(size), FormatBytes(limit));
  }
  std::string text(size, '\0');
  file.ReadAt(text.data(), size, 0);
  return text;
}

void WriteWholeFile(const std::string& path, const std::string& text) {
  File file = File::Create(path);
  file.WriteAt(text.data(), text.size(), 0);
  file.Sync();
  file.Close();
}

void ReplaceFile(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".writing";
  try {
    WriteWholeFile(fresh, text);
  } catch (...) {
    std::remove(fresh.c_str());
    throw;
  }
  if (std::rename(fresh.c_str(), path.c_str()) != 0) throw FileError("replace", path, errno);
  SyncFolder(std::filesystem::path(path).parent_path().string());
}

void SyncFolder(const std::string& folder) {
  const std::string path = folder.empty() ? "." : folder;
  const int descriptor = OpenRetrying(path, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) throw FileError("open", path, errno);
  const int result = ::fsync(descriptor);
  const int error_number = errno;
  ::close(descriptor);
  // Some file systems cannot sync a folder; the rename is then as durable as they make it.
  if (result != 0 && error_number != EINVAL && error_number != EROFS && error_number != EINTR) {
    throw FileError("write", path, error_number);
  }
}

}  // namespace haversack
