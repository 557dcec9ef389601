#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace haversack {

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int FileLock::TryAcquire(const std::string& path) {
  if (descriptor_ < 0) descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) return errno;
  int result;
  do {
    result = ::flock(descriptor_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

}  // namespace haversack
