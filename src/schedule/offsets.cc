#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
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

namespace {

// Places the buffers in `order`; returns the end of the highest.
int64_t Place(std::vector<Buffer>& buffers, const std::vector<BufferId>& order) {
  std::vector<const Buffer*> by_offset;
  std::vector<const Buffer*> conflicts;
  int64_t end = 0;
  for (const BufferId id : order) {
    Buffer& buffer = buffers[id];
    conflicts.clear();
    for (const Buffer* other : by_offset) {
      if (Overlap(buffer, *other)) conflicts.push_back(other);
    }
    buffer.offset = FindGap(conflicts, buffer.bytes);
    const auto place = std::upper_bound(
        by_offset.begin(), by_offset.end(), buffer.offset,
        [](int64_t offset, const Buffer* other) { return offset < other->offset; });
    by_offset.insert(place, &buffer);
    end = std::max(end, buffer.offset + buffer.bytes);
  }
  return end;
}

template <typename Rank>
std::vector<BufferId> OrderBy(const std::vector<Buffer>& buffers, Rank rank) {
  std::vector<BufferId> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](BufferId a, BufferId b) { return rank(buffers[a]) > rank(buffers[b]); });
  return order;
}

}  // namespace

void AssignOffsets(Schedule& schedule) {
  for (const Buffer& buffer : schedule.buffers) {
    HAVERSACK_CHECK(buffer.first >= 0 && buffer.bytes % kBufferAlignment == 0, "buffer {}",
                    buffer.name);
  }
  const auto size = [](const Buffer& b) { return std::pair(b.bytes, b.last - b.first); };
  const auto life = [](const Buffer& b) {
    return std::pair<int64_t, int64_t>(b.last - b.first, b.bytes);
  };
  const auto area = [](const Buffer& b) {
    return std::pair(b.bytes * (b.last - b.first + 1), b.bytes);
  };
  schedule.arena_bytes = std::numeric_limits<int64_t>::max();
  std::vector<Buffer> trial = schedule.buffers;
  const auto consider = [&](const std::vector<BufferId>& order) {
    const int64_t end = Place(trial, order);
    if (end >= schedule.arena_bytes) return;
    schedule.arena_bytes = end;
    schedule.buffers = trial;
  };
  consider(OrderBy(schedule.buffers, size));
  consider(OrderBy(schedule.buffers, life));
  consider(OrderBy(schedule.buffers, area));
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
