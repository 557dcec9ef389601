#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_hash.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "kernels/adamw.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInfo = "state.json";
constexpr const char* kState = "state.safetensors";
constexpr const char* kDone = "DONE";
constexpr const char* kBytes = "bytes";

constexpr const char* kUnfinished = "writing-";

int64_t BytesIn(const std::vector<std::string>& folders) {
  int64_t bytes = 0;
  std::error_code error;
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const auto size = entry.file_size(error);
      if (!error) bytes += static_cast<int64_t>(size);
    }
  }
  return bytes;
}

// What DONE holds of a file. Read back rather than summed up while it was written, which serves any
// file, whoever wrote it and in whatever order.
nlohmann::json Fingerprint(const std::string& path) {
  Hasher hasher;
  const uint64_t bytes = AddContent(File::Open(path), hasher);
  return {{kBytes, bytes}, {"xxh64", hasher.Hex()}};
}

}  // namespace

CheckpointStore::CheckpointStore(std::string folder, const Graph& graph, const ParamLayout& layout,
                                 const MomentLayout& moments)
    : folder_(std::move(folder)), graph_(graph), layout_(layout), moments_(moments) {}

int64_t CheckpointStore::BytesEach() const {
  int64_t bytes = 65536 + rank_bytes_;
  for (const StateTensor& tensor : StateTensors(graph_, layout_, moments_, {})) {
    bytes += tensor.bytes() + 160;
  }
  return bytes;
}

std::string CheckpointStore::Path(int64_t step) const {
  return fmt::format("{}/step-{:08}", folder_, step);
}

std::vector<int64_t> CheckpointStore::Steps() const {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (!name.starts_with("step-")) continue;
    std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (Path(step) == folder_ + "/" + name) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string CheckpointStore::WhyIncomplete(int64_t step, Verify verify) const {
  if (const auto found = damaged_.find(step); found != damaged_.end()) return found->second;
  const fs::path folder = Path(step);
  std::error_code error;
  if (!fs::exists(folder / kDone, error)) return "it was not finished";
  const nlohmann::json done =
      nlohmann::json::parse(ReadWholeFile((folder / kDone).string()), nullptr, false);
  if (!done.is_object() || !done.contains(kInfo) || !done.contains(kState)) {
    return fmt::format("{} is damaged", kDone);
  }
  for (const auto& [name, bytes] : done.items()) {
    const auto size = fs::file_size(folder / name, error);
    if (error) return fmt::format("{} is missing", name);
    if (!bytes.is_object()) return fmt::format("{} is damaged", kDone);
    if (bytes.value(kBytes, nlohmann::json()) != size) {
      return fmt::format("{} has {} bytes, not those that were written", name, size);
    }
    if (verify == Verify::kSizes) continue;
    if (done[name] != Fingerprint((folder / name).string())) {
      return fmt::format("{} is damaged: its checksum is not that of what was written", name);
    }
  }
  const std::string info = ReadWholeFile((folder / kInfo).string());
  if (!nlohmann::json::accept(info)) return fmt::format("{} is damaged", kInfo);
  return "";
}

std::vector<std::string> CheckpointStore::Removable(int64_t keep) const {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kUnfinished)) paths.push_back(entry.path().string());
  }
  int64_t complete = 0;
  const std::vector<int64_t> steps = Steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (!WhyIncomplete(*step).empty()) {
      if (complete > 0) paths.push_back(Path(*step));
    } else if (++complete > keep && *step != best_) {
      paths.push_back(Path(*step));
    }
  }
  return paths;
}

void CheckpointStore::Rotate(int64_t keep) const {
  for (const std::string& path : Removable(keep)) {
    // DONE goes first: a half-removed checkpoint must not look whole.
    std::error_code ignored;
    fs::remove(fs::path(path) / kDone, ignored);
    fs::remove_all(path, ignored);
  }
}

int64_t CheckpointStore::ReclaimedBytes(int64_t keep) const {
  return BytesIn(Removable(std::max<int64_t>(1, keep - 1)));
}

int64_t CheckpointStore::TotalBytes() const {
  std::vector<std::string> paths;
  for (const int64_t step : Steps()) paths.push_back(Path(step));
  return BytesIn(paths);
}

void CheckpointStore::CheckFinite(const ModelState& state) const {
  for (const StateTensor& tensor : StateTensors(graph_, layout_, moments_, state)) {
    if (tensor.dtype != "F32") continue;  // a code book holds nothing else
    if (std::isfinite(SquaredNorm(static_cast<const float*>(tensor.data), tensor.count))) continue;
    throw UserError(ExitCode::kDiverged,
                    "training diverged: {} holds numbers that are not finite; no checkpoint was "
                    "written and nothing was exported; lower --lr or lengthen --warmup, and go on "
                    "from the last checkpoint",
                    tensor.name);
  }
}

void CheckpointStore::Write(const std::string& folder, const nlohmann::json& info,
                            const ModelState& state) const {
  const auto path = [&](const char* name) { return folder + "/" + name; };
  std::vector<TensorSpec> specs;
  const std::vector<StateTensor> tensors = StateTensors(graph_, layout_, moments_, state);
  for (const StateTensor& tensor : tensors) {
    specs.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = {tensor.count}});
  }
  SafetensorsWriter writer = SafetensorsWriter::Open(path(kState), specs, {});
  for (const StateTensor& tensor : tensors) writer.WriteStored(tensor.name, tensor.data);
  writer.Finish();
  WriteWholeFile(path(kInfo), info.dump(1) + "\n");
  SyncFolder(folder);
  nlohmann::json done = nlohmann::json::object();
  for (const auto& entry : fs::directory_iterator(folder)) {
    done[entry.path().filename().string()] = Fingerprint(entry.path().string());
  }
  WriteWholeFile(path(kDone), done.dump() + "\n");
  SyncFolder(folder);
}

void CheckpointStore::Save(const nlohmann::json& info, const ModelState& state, int64_t keep,
                           bool best) {
  Begin(info.at("step"), state, keep);
  Finish(info, state, keep, best, {});
}

std::string CheckpointStore::Writing(int64_t step) const {
  return fmt::format("{}/{}{:08}", folder_, kUnfinished, step);
}

void CheckpointStore::Discard(int64_t step) const {
  std::error_code ignored;
  fs::remove_all(Writing(step), ignored);
}

void CheckpointStore::Begin(int64_t step, const ModelState& state, int64_t keep) {
  CheckFinite(state);
  Rotate(std::max<int64_t>(1, keep - 1));
  std::error_code error;
  fs::create_directories(Writing(step), error);
  if (error) throw FileError("create", Writing(step), error.value());
}

void CheckpointStore::Finish(const nlohmann::json& info, const ModelState& state, int64_t keep,
                             bool best, const std::vector<std::string>& files) {
  const int64_t step = info.at("step");
  const fs::path path = Path(step);
  const fs::path fresh = Writing(step);
  std::error_code ignored;
  try {
    for (const std::string& file : files) {
      if (fs::exists(fresh / file)) continue;
      throw UserError(ExitCode::kDevice,
                      "{} was written by another rank and is not to be seen here: --out must lie "
                      "on a file system that all ranks share",
                      (fresh / file).string());
    }
    Write(fresh.string(), info, state);
    // A run that was resumed from an earlier step comes by here a second time.
    fs::remove(path / kDone, ignored);
    fs::remove_all(path);
    fs::rename(fresh, path);
    SyncFolder(folder_);
    damaged_.erase(step);
  } catch (const fs::filesystem_error& error) {
    Discard(step);
    throw FileError("save a checkpoint of " + FormatBytes(BytesEach()) + " to", path.string(),
                    error.code().value());
  } catch (...) {
    Discard(step);
    throw;
  }
  if (best) best_ = step;
  Rotate(keep);
}

std::optional<nlohmann::json> CheckpointStore::FindNewest(
    Verify verify, const std::function<void(const std::string&)>& log) {
  const std::vector<int64_t> steps = Steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string reason = WhyIncomplete(*step, verify);
    if (!reason.empty()) {
      damaged_[*step] = reason;
      log(fmt::format("checkpoint {} is passed over: {}", Path(*step), reason));
      continue;
    }
    const std::string info_path = Path(*step) + "/" + kInfo;
    return ParseJson(ReadWholeFile(info_path), info_path);
  }
  return std::nullopt;
}

void CheckpointStore::LoadState(int64_t step, const ModelState& state) const {
  const SafetensorsFile file = SafetensorsFile::Open(Path(step) + "/" + kState);
  for (const StateTensor& tensor : StateTensors(graph_, layout_, moments_, state)) {
    const auto found = file.tensors().find(tensor.name);
    if (found == file.tensors().end() || found->second.elements() != tensor.count ||
        found->second.dtype != tensor.dtype) {
      throw UserError(ExitCode::kUsage,
                      "{}: tensor {} is missing or of another size or type: the checkpoint is of "
                      "another model",
                      file.path(), tensor.name);
    }
    file.ReadStored(found->second, tensor.data);
  }
}

}  // namespace haversack
