// The weights of a model directory: model.safetensors, or the shards that
// model.safetensors.index.json names. Where both stand, model.safetensors wins as in transformers,
// and a note says so; the two are never mixed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace haversack {

class WeightFiles {
 public:
  // Opens every file and checks the index against them. A missing shard, a tensor that is not in
  // the shard the index names, or an index that leads out of the directory is a UserError (exit 2).
  static WeightFiles Open(const std::string& model_dir);

  bool Has(const std::string& name) const { return places_.contains(name); }
  // Throws UserError naming tensor and directory where there is none.
  const TensorInfo& Info(const std::string& name) const;
  // Path of the file that holds the tensor, for messages.
  const std::string& FileOf(const std::string& name) const;
  // All elements, as f32.
  void ReadAsF32(const std::string& name, float* out) const;
  // Elements [begin, end) of the flat storage, as f32.
  void ReadRangeAsF32(const std::string& name, int64_t begin, int64_t end, float* out) const;

  const std::string& dir() const { return model_dir_; }
  // Sorted.
  std::vector<std::string> names() const;
  // One line each, for the user to see.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void AddFile(const std::string& path);
  void AddShards(const std::string& index_path);
  size_t FileIndex(const std::string& name) const;

  std::string model_dir_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> places_;  // tensor -> index in files_
  std::vector<std::string> notes_;
};

}  // namespace haversack
