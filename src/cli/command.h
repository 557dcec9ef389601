// The commands of `haversack`. Each is one file: it declares its flags, parses them and runs.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace haversack {

struct Command {
  std::string_view name;
  std::string_view summary;
  ExitCode (*run)(int argc, const char* const* argv);  // argv[0] is the command's name
};

ExitCode TrainCommand(int argc, const char* const* argv);
ExitCode PlanCommand(int argc, const char* const* argv);
ExitCode BenchCommand(int argc, const char* const* argv);
ExitCode EvalCommand(int argc, const char* const* argv);
ExitCode GenerateCommand(int argc, const char* const* argv);
ExitCode TokenizeCommand(int argc, const char* const* argv);

std::span<const Command> Commands();

// Runs a whole command line; prints errors as one line on standard error and returns the exit code.
ExitCode Main(int argc, const char* const* argv);

}  // namespace haversack
