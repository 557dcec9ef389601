// The one allocation of a run: a reserved address range, backed by huge pages where the kernel has
// them, handed out in named regions before the first step and faulted in, so that a step neither
// allocates nor faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace haversack {

class Arena {
 public:
  struct Region {
    std::string name;
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  // Reserves `bytes`; nothing is resident yet. Throws UserError (exit 3) when the system refuses.
  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The next `bytes` of the range, 64-byte aligned. A request past the end fails with an error that
  // names the region: the budget is never passed in silence.
  std::byte* Take(const std::string& name, int64_t bytes);
  // Makes every page of [begin, end) resident; they hold zeros as long as nothing was written.
  void FaultIn(int64_t begin, int64_t end);
  // Gives back everything past `bytes`; the last region ends there at the latest.
  void ShrinkTo(int64_t bytes);

  int64_t bytes() const { return bytes_; }
  int64_t used() const { return used_; }
  const std::vector<Region>& regions() const { return regions_; }

 private:
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  int64_t used_ = 0;
  std::vector<Region> regions_;
};

}  // namespace haversack
