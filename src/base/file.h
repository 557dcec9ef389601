// Files as this project uses them: positioned reads and writes on a descriptor. Never
// memory-mapped: mapped pages count as resident memory and would break the budget.
//
// A path that does not exist or is a folder is the user's mistake (exit 2); whatever else fails is
// a device's (exit 5, FileError). Interrupted calls are continued.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace haversack {

class File {
 public:
  File() = default;
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  // Open for reading.
  static File Open(const std::string& path);
  // Create or truncate, for reading and writing.
  static File Create(const std::string& path);
  // Open for reading and writing what is there; created if need be, never truncated.
  static File Update(const std::string& path);

  const std::string& path() const { return path_; }
  bool is_open() const { return descriptor_ >= 0; }
  uint64_t Size() const;

  // Reads up to `count` bytes at `offset`; fewer only at the end of the file.
  uint64_t ReadUpTo(void* out, uint64_t count, uint64_t offset) const;
  // Reads exactly `count` bytes; a file that ends before is a UserError (exit 2).
  void ReadAt(void* out, uint64_t count, uint64_t offset) const;
  // Where `offset` has no meaning (a pipe, a terminal) it is ignored. A full disk is an error that
  // says how many bytes were still to be written.
  void WriteAt(const void* data, uint64_t count, uint64_t offset);
  // Cuts the file off at `size` bytes; pipes and devices are left alone.
  void Truncate(uint64_t size);
  // Claims the space for `size` bytes now where the file system can, so that a full disk shows
  // before the work and not after it.
  void Reserve(uint64_t size);
  // Waits until everything written has reached the device.
  void Sync();
  void Close();

 private:
  std::string path_;
  int descriptor_ = -1;
};

// The whole of a small file; more than `limit` bytes is a UserError.
std::string ReadWholeFile(const std::string& path, uint64_t limit = 256u << 20);

// Writes all of a small file and syncs it.
void WriteWholeFile(const std::string& path, const std::string& text);

// Puts `text` in the place of the file at `path` in one go: whoever reads it, and whoever finds it
// after a crash, sees either the old content or the new one.
void ReplaceFile(const std::string& path, const std::string& text);

// Makes renames and new names in `folder` durable.
void SyncFolder(const std::string& folder);

}  // namespace haversack
