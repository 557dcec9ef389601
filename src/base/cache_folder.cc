#include "base/cache_folder.h"

#include <cstdlib>

namespace haversack {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::optional<std::string> CacheFolder() {
  if (std::string own = Variable("HAVERSACK_CACHE"); !own.empty()) return own;
  // The XDG base directory specification: a relative path there is to be ignored.
  if (std::string xdg = Variable("XDG_CACHE_HOME"); xdg.starts_with('/')) return xdg + "/haversack";
  if (std::string home = Variable("HOME"); !home.empty()) return home + "/.cache/haversack";
  return std::nullopt;
}

}  // namespace haversack
