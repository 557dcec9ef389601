#include "data/token_cache.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/file_lock.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLockInterval(50);

// Waits for other holders. errno of what failed, or 0.
int Acquire(FileLock& lock, const std::string& path, const TokenCacheOptions& options) {
  int result = lock.TryAcquire(path);
  if (result == EWOULDBLOCK && options.log) {
    options.log("waiting for another process that tokenises the same data");
  }
  for (; result == EWOULDBLOCK; result = lock.TryAcquire(path)) {
    if (options.poll) options.poll();
    std::this_thread::sleep_for(kLockInterval);
  }
  return result;
}

// Removes the folder unless told to keep it.
class FolderGuard {
 public:
  explicit FolderGuard(std::string path) : path_(std::move(path)) {}
  ~FolderGuard() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  void Keep() { path_.clear(); }

 private:
  std::string path_;
};

void Log(const TokenCacheOptions& options, const std::string& line) {
  if (options.log) options.log(line);
}

std::optional<TokenStore> OpenIfIntact(const std::string& folder, const std::string& key,
                                       std::string* reason = nullptr) {
  std::error_code error;
  if (!fs::exists(folder, error)) return std::nullopt;
  try {
    return TokenStore::Open(folder, key);
  } catch (const UserError& failure) {
    if (reason) *reason = failure.what();
    return std::nullopt;
  }
}

TokenStore BuildIn(const std::string& folder, const std::string& final_folder,
                   const std::string& key,
                   const std::function<void(const std::string& folder)>& build) {
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (error) throw FileError("create", folder, error.value());
  FolderGuard guard(folder);
  try {
    build(folder);
    if (final_folder.empty())
      return TokenStore::Open(folder, key);  // the open files outlive the folder
    SyncFolder(folder);
    fs::rename(folder, final_folder, error);
    if (error) throw FileError("rename", folder, error.value());
    guard.Keep();
    SyncFolder(fs::path(final_folder).parent_path().string());
  } catch (const UserError& failure) {
    if (failure.code() != ExitCode::kDevice ||
        !std::string(failure.what()).starts_with("cannot write"))
      throw;
    throw UserError(ExitCode::kDevice, "{}; set HAVERSACK_CACHE to a folder on another disk",
                    failure.what());
  }
  return TokenStore::Open(final_folder, key);
}

}  // namespace

TokenStore OpenOrBuildStore(const std::string& key, const TokenCacheOptions& options,
                            const std::function<void(const std::string& folder)>& build) {
  std::string reason = "no cache folder is known";
  if (options.cache_folder) {
    const std::string cache = *options.cache_folder + "/tokens";
    const std::string folder = cache + "/" + key;
    // A store under its name is whole, so an intact one needs no lock, nor a folder that can be
    // written.
    if (auto store = OpenIfIntact(folder, key)) return std::move(*store);
    std::error_code error;
    fs::create_directories(cache, error);
    FileLock lock;
    int failed = error ? error.value() : 0;
    if (failed == 0) failed = Acquire(lock, folder + ".lock", options);
    if (failed == 0) {
      std::string damage;
      if (auto store = OpenIfIntact(folder, key, &damage)) return std::move(*store);
      if (!damage.empty()) Log(options, "the cached tokens are made again: " + damage);
      fs::remove_all(folder, error);
      return BuildIn(folder + ".tmp", folder, key, build);
    }
    reason = fmt::format("the cache folder {} cannot be used ({})", cache, std::strerror(failed));
  }
  const std::string folder =
      fmt::format("{}/tokens-{}-{}", options.fallback_folder, key, ::getpid());
  Log(options, fmt::format("{}: the tokens are kept in {} for this run only", reason,
                           options.fallback_folder));
  return BuildIn(folder, "", key, build);
}

}  // namespace haversack
