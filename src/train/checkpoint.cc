#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInfo = "state.json";
constexpr const char* kState = "state.safetensors";
constexpr const char* kDone = "DONE";
constexpr const char* kParts[] = {"weights.", "m.", "v."};

void WriteFile(const fs::path& path, const std::string& text) {
  File file = File::Create(path.string());
  file.WriteAt(text.data(), text.size(), 0);
  file.Sync();
}

std::vector<float*> PartsOf(const ModelState& state) { return {state.weights, state.m, state.v}; }

}  // namespace

CheckpointStore::CheckpointStore(std::string folder, const Graph& graph, const ParamLayout& layout)
    : folder_(std::move(folder)), graph_(graph), layout_(layout) {}

int64_t CheckpointStore::BytesEach() const {
  const int64_t headers = static_cast<int64_t>(graph_.params.size()) * 3 * 160 + 65536;
  return 3 * graph_.parameter_count() * static_cast<int64_t>(sizeof(float)) + headers;
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
    const auto [end, bad] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (bad == std::errc() && end == name.data() + name.size()) steps.push_back(step);
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
  for (const char* name : {kInfo, kState}) {
    const auto size = fs::file_size(folder / name, error);
    if (error) return fmt::format("{} is missing", name);
    if (!done.is_object() || done.value(name, nlohmann::json()) != size) {
      return fmt::format("{} has {} bytes, not those that were written", name, size);
    }
  }
  return "";
}

void CheckpointStore::Rotate(int64_t keep) const {
  std::vector<int64_t> complete;
  for (const int64_t step : Steps()) {
    if (WhyIncomplete(step).empty()) complete.push_back(step);
  }
  const auto keeping = static_cast<size_t>(std::max<int64_t>(1, keep - 1));
  for (size_t i = 0; i + keeping < complete.size(); ++i) {
    if (complete[i] == best_) continue;
    // DONE goes first: a half-removed checkpoint must not look whole.
    std::error_code ignored;
    fs::remove(fs::path(Path(complete[i])) / kDone, ignored);
    fs::remove_all(Path(complete[i]), ignored);
  }
}

void CheckpointStore::Save(const nlohmann::json& info, const ModelState& state, int64_t keep) {
  Rotate(keep);
  const int64_t step = info.at("step");
  const fs::path path = Path(step);
  const fs::path fresh = fmt::format("{}/writing-{:08}", folder_, step);
  try {
    fs::remove_all(fresh);
    fs::create_directories(fresh);
    std::vector<TensorSpec> specs;
    for (const char* part : kParts) {
      for (const Param& param : graph_.params) {
        specs.push_back({.name = part + param.name, .dtype = "F32", .shape = {param.count()}});
      }
    }
    SafetensorsWriter writer = SafetensorsWriter::Open((fresh / kState).string(), specs, {});
    const std::vector<float*> parts = PartsOf(state);
    for (size_t k = 0; k < parts.size(); ++k) {
      for (size_t p = 0; p < graph_.params.size(); ++p) {
        writer.Write(kParts[k] + graph_.params[p].name, parts[k] + layout_.offset[p]);
      }
    }
    writer.Finish();
    WriteFile(fresh / kInfo, info.dump(1) + "\n");
    SyncFolder(fresh.string());
    const nlohmann::json done = {{kInfo, fs::file_size(fresh / kInfo)},
                                 {kState, fs::file_size(fresh / kState)}};
    WriteFile(fresh / kDone, done.dump() + "\n");
    SyncFolder(fresh.string());
    // A run that was resumed from an earlier step comes by here a second time.
    std::error_code ignored;
    fs::remove(path / kDone, ignored);
    fs::remove_all(path);
    fs::rename(fresh, path);
    SyncFolder(folder_);
  } catch (const fs::filesystem_error& error) {
    throw FileError("save a checkpoint to", path.string(), error.code().value());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    throw;
  }
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
