// Token stores kept between runs: CACHE/tokens/KEY. A store is built in KEY.tmp and renamed, so one
// that has its name is whole; KEY.lock lets one process build while others of the same run wait.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "data/token_store.h"

namespace haversack {

struct TokenCacheOptions {
  std::optional<std::string> cache_folder;  // nothing: no cache
  std::string
      fallback_folder;  // where the tokens go, for this run only, if the cache cannot be used
  std::function<void(const std::string&)> log;
  std::function<void()> poll = {};  // called now and then while waiting; may throw to stop
};

// The store of `key`: from the cache, or built by build(folder), which must leave a finished store
// there. A damaged one is built again, said in the log. A disk that fills while building is exit 5.
TokenStore OpenOrBuildStore(const std::string& key, const TokenCacheOptions& options,
                            const std::function<void(const std::string& folder)>& build);

}  // namespace haversack
