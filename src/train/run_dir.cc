#include "train/run_dir.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".lock";
constexpr const char* kExported = "exported.json";

nlohmann::json ExportRecord(int64_t step, const std::string& dtype) {
  return {{"step", step}, {"dtype", dtype}};
}

// Tokens without a cache lie in the run directory while it runs (data/token_cache.h).
void RemoveLeftovers(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool tokens = name.starts_with("tokens-") && entry.is_directory(ignored);
    if (tokens || name.ends_with(".json.writing")) {
      fs::remove_all(entry.path(), ignored);
    }
  }
}

}  // namespace

RunDir::RunDir(std::string path, bool leader) : path_(std::move(path)) {
  if (!leader) return;
  std::error_code error;
  if (fs::exists(path_, error) && !fs::is_directory(path_, error)) {
    throw UserError(ExitCode::kUsage, "--out {}: is not a directory; choose another",
                    path_.string());
  }
  fs::create_directories(path_, error);
  if (error) throw FileError("create", path_.string(), error.value());
  const int failed = lock_.TryAcquire(File(kLock));
  if (failed == EWOULDBLOCK) {
    throw UserError(ExitCode::kUsage,
                    "--out {}: another process is training into it; wait for its end, or choose "
                    "another --out",
                    path_.string());
  }
  // Where the file system knows no locks, the run goes on without one.
  if (failed != 0 && failed != EOPNOTSUPP && failed != ENOLCK && failed != ENOSYS) {
    throw FileError("write", File(kLock), failed);
  }
  RemoveLeftovers(path_);
}

void RunDir::WriteJson(const char* name, const nlohmann::json& json) const {
  ReplaceFile(File(name), json.dump(1) + "\n");
}

bool RunDir::Exported(int64_t step, const std::string& dtype) const {
  std::error_code error;
  const fs::path model = path_ / "model";
  if (!fs::exists(path_ / kExported, error) || !fs::exists(model / "config.json", error) ||
      !fs::exists(model / "model.safetensors", error)) {
    return false;
  }
  return nlohmann::json::parse(ReadWholeFile(File(kExported)), nullptr, false) ==
         ExportRecord(step, dtype);
}

void RunDir::BeginExport() const {
  std::error_code error;
  fs::remove(path_ / kExported, error);
  if (error) throw FileError("remove", File(kExported), error.value());
  SyncFolder(path_.string());
}

void RunDir::EndExport(int64_t step, const std::string& dtype) const {
  WriteJson(kExported, ExportRecord(step, dtype));
}

int64_t RunDir::FreeBytes() const {
  struct statvfs stat;
  if (statvfs(path_.c_str(), &stat) != 0) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(uint64_t{stat.f_bavail} * stat.f_frsize);
}

}  // namespace haversack
