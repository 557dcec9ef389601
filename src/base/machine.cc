#include "base/machine.h"

#include <fstream>
#include <sstream>

namespace haversack {
namespace {

std::string CpuField(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    return line.substr(std::min(line.size(), colon + 2));
  }
  return "";
}

bool HasFlag(const std::string& flags, const std::string& flag) {
  std::istringstream words(flags);
  std::string word;
  while (words >> word) {
    if (word == flag) return true;
  }
  return false;
}

}  // namespace

std::string CpuModel() {
  const std::string model = CpuField("model name");
  return model.empty() ? "unknown CPU" : model;
}

bool CpuHasBF16Tiles() { return HasFlag(CpuField("flags"), "amx_bf16"); }

std::string CpuIsa() {
  const std::string flags = CpuField("flags");
  std::string isa = "baseline";
  if (HasFlag(flags, "avx2")) isa = "AVX2";
  if (HasFlag(flags, "avx512f")) isa = "AVX-512";
  if (HasFlag(flags, "avx512_bf16")) isa += "+BF16";
  if (HasFlag(flags, "amx_bf16")) isa += "+AMX";
  return isa;
}

}  // namespace haversack
