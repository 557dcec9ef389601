#include "exec/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "base/threads.h"

namespace haversack {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kPage = 4096;

}  // namespace

Arena::Arena(int64_t bytes) : bytes_(static_cast<int64_t>(AlignUp(bytes, kPage))) {
  // One huge page more, so that the range begins on a huge-page boundary.
  const int64_t reserved = bytes_ + kHugePage;
  void* address = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw UserError(ExitCode::kBudget, "cannot reserve {} of address space: {}; lower --memory",
                    FormatBytes(bytes), std::strerror(errno));
  }
  auto* begin = static_cast<std::byte*>(address);
  base_ = reinterpret_cast<std::byte*>(AlignUp(reinterpret_cast<uint64_t>(begin), kHugePage));
  if (base_ > begin) munmap(begin, base_ - begin);
  std::byte* end = begin + reserved;
  if (end > base_ + bytes_) munmap(base_ + bytes_, end - (base_ + bytes_));
  // The whole huge pages only: a partial one at the end would become resident beyond the range.
  madvise(base_, bytes_ / kHugePage * kHugePage, MADV_HUGEPAGE);
}

Arena::~Arena() { munmap(base_, bytes_); }

std::byte* Arena::Take(const std::string& name, int64_t bytes) {
  const auto size = static_cast<int64_t>(AlignUp(bytes, 64));
  HAVERSACK_CHECK(used_ + size <= bytes_,
                  "region '{}' of {} bytes does not fit: {} of {} are taken", name, size, used_,
                  bytes_);
  regions_.push_back({.name = name, .offset = used_, .bytes = size});
  std::byte* result = base_ + used_;
  used_ += size;
  return result;
}

void Arena::FaultIn(int64_t begin, int64_t end) {
  HAVERSACK_CHECK(0 <= begin && begin <= end && end <= bytes_, "[{}, {}) of {}", begin, end,
                  bytes_);
  // One write a page: the kernel hands out zeroed pages.
  const int64_t first = begin / kPage, last = (end + kPage - 1) / kPage;
  ParallelFor(last - first, 512, [&](int64_t from, int64_t to) {
    for (int64_t page = first + from; page < first + to; ++page) {
      volatile auto* byte = reinterpret_cast<volatile char*>(base_ + page * kPage);
      *byte = *byte;
    }
  });
}

void Arena::ShrinkTo(int64_t bytes) {
  const auto size = static_cast<int64_t>(AlignUp(bytes, kPage));
  if (size >= bytes_) return;
  // A huge page that reaches past the end is given back too, in small pages from now on.
  const int64_t whole = size / kHugePage * kHugePage;
  if (whole < size) madvise(base_ + whole, size - whole, MADV_NOHUGEPAGE);
  munmap(base_ + size, bytes_ - size);
  bytes_ = size;
  Region& last = regions_.back();
  last.bytes = std::min(last.bytes, size - last.offset);
  used_ = std::min(used_, size);
}

}  // namespace haversack
