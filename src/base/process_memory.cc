#include "base/process_memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace haversack {
namespace {

// The number behind `key` in a file of "Key: N kB" lines, in bytes.
std::optional<int64_t> KilobyteField(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return std::nullopt;
}

std::optional<int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (file >> number) return number;  // "max" is no number: no limit
  return std::nullopt;
}

// The path of this process's group in the hierarchy of `controller` ("" for version 2).
std::string GroupPath(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return "/";
}

// Bytes that the groups from `group` up to the root leave.
int64_t LeftInGroups(const std::string& root, std::string group, const char* limit_file,
                     const char* usage_file) {
  int64_t left = std::numeric_limits<int64_t>::max();
  while (true) {
    const std::string folder = root + (group == "/" ? "" : group);
    const std::optional<int64_t> limit = NumberIn(folder + "/" + limit_file);
    const std::optional<int64_t> usage = NumberIn(folder + "/" + usage_file);
    if (limit && usage) left = std::min(left, std::max<int64_t>(0, *limit - *usage));
    if (group == "/" || group.empty()) return left;
    group = group.substr(0, group.rfind('/'));
    if (group.empty()) group = "/";
  }
}

}  // namespace

int64_t ResidentBytes() { return KilobyteField("/proc/self/status", "VmRSS").value_or(0); }

int64_t PeakResidentBytes() { return KilobyteField("/proc/self/status", "VmHWM").value_or(0); }

int64_t AvailableBytes() {
  const int64_t machine = KilobyteField("/proc/meminfo", "MemAvailable").value_or(0);
  const int64_t version2 =
      LeftInGroups("/sys/fs/cgroup", GroupPath(""), "memory.max", "memory.current");
  const int64_t version1 = LeftInGroups("/sys/fs/cgroup/memory", GroupPath("memory"),
                                        "memory.limit_in_bytes", "memory.usage_in_bytes");
  return std::min({machine, version2, version1});
}

void TrimHeap() { malloc_trim(0); }

}  // namespace haversack
