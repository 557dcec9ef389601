#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "schedule/schedule.h"

namespace haversack {
namespace {

bool Overlap(const Buffer& a, const Buffer& b) { return a.first <= b.last && b.first <= a.last; }

// The tightest gap of at least `bytes` between `placed` (sorted by offset), or the end of the last.
int64_t FindGap(const std::vector<const Buffer*>& placed, int64_t bytes) {
  int64_t best = -1;
  int64_t best_size = std::numeric_limits<int64_t>::max();
  int64_t cursor = 0;
  for (const Buffer* other : placed) {
    const int64_t gap = other->offset - cursor;
    if (gap >= bytes && gap < best_size) {
      best = cursor;
      best_size = gap;
    }
    cursor = std::max(cursor, other->offset + other->bytes);
  }
  return best >= 0 ? best : cursor;
}

}  // namespace

void AssignOffsets(Schedule& schedule) {
  std::vector<BufferId> order(schedule.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](BufferId a, BufferId b) {
    return schedule.buffers[a].bytes > schedule.buffers[b].bytes;
  });
  std::vector<const Buffer*> by_offset;
  std::vector<const Buffer*> conflicts;
  schedule.arena_bytes = 0;
  for (const BufferId id : order) {
    Buffer& buffer = schedule.buffers[id];
    HAVERSACK_CHECK(buffer.first >= 0 && buffer.bytes % kBufferAlignment == 0, "buffer {}",
                    buffer.name);
    conflicts.clear();
    for (const Buffer* other : by_offset) {
      if (Overlap(buffer, *other)) conflicts.push_back(other);
    }
    buffer.offset = FindGap(conflicts, buffer.bytes);
    const auto place = std::upper_bound(
        by_offset.begin(), by_offset.end(), buffer.offset,
        [](int64_t offset, const Buffer* other) { return offset < other->offset; });
    by_offset.insert(place, &buffer);
    schedule.arena_bytes = std::max(schedule.arena_bytes, buffer.offset + buffer.bytes);
  }
  schedule.live_bytes = 0;
  for (const LiveBytes& live : SimulateMemory(schedule)) {
    schedule.live_bytes = std::max(schedule.live_bytes, live.total);
  }
}

std::vector<LiveBytes> SimulateMemory(const Schedule& schedule) {
  std::vector<LiveBytes> timeline(schedule.instrs.size());
  for (const Buffer& buffer : schedule.buffers) {
    for (int i = buffer.first; i <= buffer.last; ++i) {
      timeline[i].by_kind[static_cast<size_t>(buffer.kind)] += buffer.bytes;
      if (buffer.kept) timeline[i].kept += buffer.bytes;
      timeline[i].total += buffer.bytes;
    }
  }
  return timeline;
}

}  // namespace haversack
