#include "io/weight_files.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/json.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

// Whether `target` lies in `folder`, or in the blob store beside it where `folder` is a snapshot of
// a Hugging Face cache (models--X/snapshots/REVISION links its files to models--X/blobs).
bool Inside(const fs::path& target, const fs::path& folder) {
  const auto under = [&target](const fs::path& top) {
    const fs::path relative = target.lexically_relative(top);
    return !relative.empty() && *relative.begin() != "..";
  };
  if (under(folder)) return true;
  return folder.parent_path().filename() == "snapshots" &&
         under(folder.parent_path().parent_path() / "blobs");
}

// The shard's path, or a UserError naming index and tensor where it is missing or leads elsewhere.
std::string ShardPath(const std::string& model_dir, const std::string& index_path,
                      const std::string& tensor, const std::string& shard) {
  const fs::path relative(shard);
  bool climbs = relative.empty() || relative.is_absolute() || shard.find('\0') != std::string::npos;
  for (const fs::path& part : relative) climbs = climbs || part == "..";
  const fs::path path = fs::path(model_dir) / relative;
  std::error_code error;
  if (!climbs && fs::exists(path, error)) {
    climbs = !Inside(fs::canonical(path, error), fs::canonical(model_dir, error));
  }
  if (climbs) {
    throw UserError(ExitCode::kUsage,
                    "{}: tensor '{}' is placed in '{}', outside the model directory", index_path,
                    OneLine(tensor), OneLine(shard));
  }
  if (!fs::exists(path, error)) {
    throw UserError(ExitCode::kUsage, "{}: tensor '{}' is in shard '{}', which is missing from {}",
                    index_path, OneLine(tensor), OneLine(shard), model_dir);
  }
  return path.string();
}

std::map<std::string, std::string> ReadWeightMap(const std::string& index_path) {
  const nlohmann::json index = ParseJson(ReadWholeFile(index_path), index_path);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    throw UserError(ExitCode::kUsage, "{}: field 'weight_map' must be an object of tensor to file",
                    index_path);
  }
  std::map<std::string, std::string> result;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      throw UserError(ExitCode::kUsage,
                      "{}: 'weight_map' gives {} for tensor '{}', not a file name", index_path,
                      JsonTypeName(shard), OneLine(tensor));
    }
    result.emplace(tensor, shard.get<std::string>());
  }
  return result;
}

}  // namespace

WeightFiles WeightFiles::Open(const std::string& model_dir) {
  WeightFiles weights;
  weights.model_dir_ = model_dir;
  std::error_code error;
  if (!fs::is_directory(model_dir, error)) {
    throw UserError(ExitCode::kUsage, "{}: no such model directory", model_dir);
  }
  const fs::path single = fs::path(model_dir) / "model.safetensors";
  const fs::path index = fs::path(model_dir) / "model.safetensors.index.json";
  if (Exists(single)) {
    weights.AddFile(single.string());
    if (Exists(index)) {
      weights.notes_.push_back(fmt::format(
          "{}: model.safetensors is used; model.safetensors.index.json and its shards are ignored",
          model_dir));
    }
  } else if (Exists(index)) {
    weights.AddShards(index.string());
  } else if (Exists(fs::path(model_dir) / "pytorch_model.bin") ||
             Exists(fs::path(model_dir) / "pytorch_model.bin.index.json")) {
    throw UserError(ExitCode::kUsage,
                    "{}: holds pytorch_model.bin; only safetensors are read: save the model again "
                    "with transformers' save_pretrained",
                    model_dir);
  } else {
    throw UserError(ExitCode::kUsage,
                    "{}: no weights: neither model.safetensors nor model.safetensors.index.json",
                    model_dir);
  }
  return weights;
}

void WeightFiles::AddFile(const std::string& path) {
  files_.push_back(SafetensorsFile::Open(path));
  for (const auto& [name, info] : files_.back().tensors()) places_.emplace(name, files_.size() - 1);
}

void WeightFiles::AddShards(const std::string& index_path) {
  const std::map<std::string, std::string> weight_map = ReadWeightMap(index_path);
  std::map<std::string, size_t> shards;  // file name -> index in files_
  for (const auto& [tensor, shard] : weight_map) {
    if (shards.contains(shard)) continue;
    const std::string path = ShardPath(model_dir_, index_path, tensor, shard);
    shards.emplace(shard, files_.size());
    try {
      files_.push_back(SafetensorsFile::Open(path));
    } catch (const UserError& failure) {
      throw UserError(failure.code(), "{} (the shard of tensor '{}')", failure.what(),
                      OneLine(tensor));
    }
  }
  for (const auto& [tensor, shard] : weight_map) {
    const size_t file = shards.at(shard);
    if (files_[file].tensors().contains(tensor)) {
      places_.emplace(tensor, file);
      continue;
    }
    std::string hint = "; no shard holds it";
    for (const SafetensorsFile& other : files_) {
      if (other.tensors().contains(tensor)) hint = "; it is in " + other.path();
    }
    throw UserError(ExitCode::kUsage,
                    "{}: tensor '{}' is said to be in {}, which does not hold it{}", index_path,
                    OneLine(tensor), files_[file].path(), hint);
  }
  for (const auto& [shard, file] : shards) {
    for (const auto& [name, info] : files_[file].tensors()) {
      if (places_.contains(name)) continue;
      notes_.push_back(fmt::format("{}: tensor '{}' is not in the index and is ignored",
                                   files_[file].path(), OneLine(name)));
    }
  }
}

size_t WeightFiles::FileIndex(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) {
    throw UserError(ExitCode::kUsage, "{}: tensor '{}' is missing", model_dir_, OneLine(name));
  }
  return found->second;
}

const TensorInfo& WeightFiles::Info(const std::string& name) const {
  return files_[FileIndex(name)].tensors().at(name);
}

const std::string& WeightFiles::FileOf(const std::string& name) const {
  return files_[FileIndex(name)].path();
}

void WeightFiles::ReadAsF32(const std::string& name, float* out) const {
  files_[FileIndex(name)].ReadAsF32(Info(name), out);
}

void WeightFiles::ReadRangeAsF32(const std::string& name, int64_t begin, int64_t end,
                                 float* out) const {
  files_[FileIndex(name)].ReadRangeAsF32(Info(name), begin, end, out);
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> result;
  for (const auto& [name, file] : places_) result.push_back(name);
  return result;
}

}  // namespace haversack
