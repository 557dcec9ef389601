// Where things that can be made again are kept: $HAVERSACK_CACHE, else $XDG_CACHE_HOME/haversack,
// else
// ~/.cache/haversack.
#pragma once

#include <optional>
#include <string>

namespace haversack {

// Nothing where none of the variables is set. The folder may not exist yet.
std::optional<std::string> CacheFolder();

}  // namespace haversack
