#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "kernels/adamw.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInfo = "state.json";
constexpr const char* kState = "state.safetensors";
constexpr const char* kDone = "DONE";
constexpr const char* kParts[] = {"weights.", "m.", "v."};

constexpr const char* kUnfinished = "writing-";

std::vector<float*> PartsOf(const ModelState& state) { return {state.weights, state.m, state.v}; }

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

}  // namespace

CheckpointStore::CheckpointStore(std::string folder, const Graph& graph, const ParamLayout& layout)
    : folder_(std::move(folder)), graph_(graph), layout_(layout) {}

int64_t CheckpointStore::BytesEach() const {
  const int64_t headers = static_cast<int64_t>(graph_.params.size()) * 3 * 160 + 65536;
  return 3 * graph_.parameter_count() * static_cast<int64_t>(sizeof(float)) + headers + rank_bytes_;
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

std::string CheckpointStore::WhyIncomplete(int64_t step) const {
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
    if (bytes != size) {
      return fmt::format("{} has {} bytes, not those that were written", name, size);
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
  const std::vector<float*> parts = PartsOf(state);
  for (size_t k = 0; k < parts.size(); ++k) {
    for (size_t p = 0; p < graph_.params.size(); ++p) {
      const Param& param = graph_.params[p];
      if (std::isfinite(SquaredNorm(parts[k] + layout_.offset[p], param.count()))) continue;
      throw UserError(
          ExitCode::kDiverged,
          "training diverged: {}{} holds numbers that are not finite; no checkpoint was "
          "written and nothing was exported; lower --lr or lengthen --warmup, and go on "
          "from the last checkpoint",
          kParts[k], param.name);
    }
  }
}

void CheckpointStore::Write(const std::string& folder, const nlohmann::json& info,
                            const ModelState& state) const {
  const auto path = [&](const char* name) { return folder + "/" + name; };
  std::vector<TensorSpec> specs;
  for (const char* part : kParts) {
    for (const Param& param : graph_.params) {
      specs.push_back({.name = part + param.name, .dtype = "F32", .shape = {param.count()}});
    }
  }
  SafetensorsWriter writer = SafetensorsWriter::Open(path(kState), specs, {});
  const std::vector<float*> parts = PartsOf(state);
  for (size_t k = 0; k < parts.size(); ++k) {
    for (size_t p = 0; p < graph_.params.size(); ++p) {
      writer.Write(kParts[k] + graph_.params[p].name, parts[k] + layout_.offset[p]);
    }
  }
  writer.Finish();
  WriteWholeFile(path(kInfo), info.dump(1) + "\n");
  SyncFolder(folder);
  nlohmann::json done = nlohmann::json::object();
  for (const auto& entry : fs::directory_iterator(folder)) {
    done[entry.path().filename().string()] = entry.file_size();
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
    const std::function<void(const std::string&)>& log) const {
  const std::vector<int64_t> steps = Steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string reason = WhyIncomplete(*step);
    if (!reason.empty()) {
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
  const std::vector<float*> parts = PartsOf(state);
  for (size_t k = 0; k < parts.size(); ++k) {
    for (size_t p = 0; p < graph_.params.size(); ++p) {
      const std::string name = kParts[k] + graph_.params[p].name;
      const auto found = file.tensors().find(name);
      if (found == file.tensors().end() || found->second.elements() != graph_.params[p].count()) {
        throw UserError(ExitCode::kUsage,
                        "{}: tensor {} is missing or of another size: the checkpoint is of another "
                        "model",
                        file.path(), name);
      }
      file.ReadAsF32(found->second, parts[k] + layout_.offset[p]);
    }
  }
}

}  // namespace haversack
