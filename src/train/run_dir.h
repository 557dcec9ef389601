// The directory of a run: one process at a time trains into it.
//
//   OUT/model/          the exported model
//   OUT/checkpoints/    see checkpoint.h
//   OUT/run.json        resolved options, identity of model and data
//   OUT/plan.json       the plan in use
//   OUT/exported.json   which step OUT/model is of, and its type; not there: no export has ended
//   OUT/train.log
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file_lock.h"

namespace haversack {

class RunDir {
 public:
  // Creates the directory, locks it until destruction, and removes what a killed run left of its
  // temporary files. Throws UserError: exit 2 where the path is no directory or another process
  // trains into it, exit 5 where it cannot be created or written. Of the ranks of a run one is the
  // leader; the others rely on it, and touch nothing here.
  explicit RunDir(std::string path, bool leader = true);

  const std::filesystem::path& path() const { return path_; }
  std::string File(const char* name) const { return (path_ / name).string(); }
  std::string checkpoints() const { return File("checkpoints"); }
  std::string model() const { return File("model"); }

  // Puts a JSON file in place of an older one in one go.
  void WriteJson(const char* name, const nlohmann::json& json) const;

  // Whether OUT/model is the whole export of `step` in `dtype`.
  bool Exported(int64_t step, const std::string& dtype) const;
  // From here on OUT/model belongs to no step.
  void BeginExport() const;
  void EndExport(int64_t step, const std::string& dtype) const;

  // Bytes that a user without privileges may still write.
  int64_t FreeBytes() const;

 private:
  std::filesystem::path path_;
  FileLock lock_;
};

}  // namespace haversack
