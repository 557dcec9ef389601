#include "base/bytes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace haversack {

uint64_t ParseBytes(std::string_view text, std::string_view what) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  static constexpr std::array<std::pair<std::string_view, double>, 14> kUnits = {{
      {"", 1.0},
      {"b", 1.0},
      {"kb", 1e3},
      {"mb", 1e6},
      {"gb", 1e9},
      {"tb", 1e12},
      {"k", 1024.0},
      {"m", 1048576.0},
      {"g", 1073741824.0},
      {"t", 1099511627776.0},
      {"kib", 1024.0},
      {"mib", 1048576.0},
      {"gib", 1073741824.0},
      {"tib", 1099511627776.0},
  }};
  const auto* match =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& u) { return u.first == unit; });
  if (error != std::errc() || match == kUnits.end() || !std::isfinite(number) || number < 0 ||
      number * match->second > 9e18) {
    throw UserError(
        ExitCode::kUsage,
        "{}: '{}' is not a byte size; write a number with a unit, such as 3GiB or 512MiB", what,
        text);
  }
  return static_cast<uint64_t>(std::llround(number * match->second));
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  if (value >= 100) return fmt::format("{:.0f} {}", value, kNames[unit]);
  return fmt::format("{:.{}f} {}", value, value >= 10 ? 1 : 2, kNames[unit]);
}

}  // namespace haversack
