// An advisory lock on a file (flock): held until destruction or the end of the process, however it
// ends. The lock's file stays behind; its presence means nothing.
#pragma once

#include <string>
#include <utility>

namespace haversack {

class FileLock {
 public:
  FileLock() = default;
  ~FileLock();
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;

  // 0: held from now on. EWOULDBLOCK: another holds it. Else the errno of what failed.
  int TryAcquire(const std::string& path);

 private:
  int descriptor_ = -1;
};

}  // namespace haversack
