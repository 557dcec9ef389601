// Command-line parsing shared by the commands: CLI11 with YAML configuration files, errors as
// UserError.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "train/options.h"

namespace haversack {

// A parser for `haversack NAME`.
class Flags {
 public:
  Flags(const std::string& name, const std::string& description);

  CLI::App& app() { return app_; }
  // Adds `--config FILE`: a YAML mapping of flags without their dashes; the command line wins.
  void AddConfig();
  // A byte size such as 3GiB.
  void AddBytes(const std::string& flag, std::optional<uint64_t>& bytes, const std::string& help);

  // Parses; false when help was asked for and printed. Throws UserError (exit 2) otherwise.
  bool Parse(int argc, const char* const* argv);

 private:
  CLI::App app_;
};

// The options that `train` and `plan` share.
void AddTrainFlags(Flags& flags, TrainOptions& options);
// What the flags cannot say one by one: sizes that exclude each other. Throws UserError (exit 2).
void CheckTrainOptions(const TrainOptions& options);

}  // namespace haversack
