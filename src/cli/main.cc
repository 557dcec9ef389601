#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <new>

#include "cli/command.h"

namespace haversack {
namespace {

constexpr std::array<Command, 6> kCommands = {{
    {"train", "train or fine-tune a model inside a memory budget", TrainCommand},
    {"plan", "say whether a run fits a budget and how fast it will be", PlanCommand},
    {"bench", "time a training step op by op against the machine's limits", BenchCommand},
    {"eval", "loss and perplexity of a model on text", EvalCommand},
    {"generate", "continue a prompt", GenerateCommand},
    {"tokenize", "token ids of each line of a file", TokenizeCommand},
}};

void PrintHelp() {
  fmt::print(
      "haversack {}: trains transformer language models inside a memory budget\n\n"
      "usage: haversack COMMAND [options]\n\n",
      HAVERSACK_VERSION);
  for (const Command& command : kCommands) {
    fmt::print("  {:<10} {}\n", command.name, command.summary);
  }
  fmt::print(
      "\n`haversack COMMAND --help` lists a command's options.\n"
      "Exit codes: 0 done, 1 a bug in Haversack, 2 bad input or usage, 3 does not fit the budget,\n"
      "4 training diverged, 5 a file or device failed, 6 a peer was lost.\n");
}

ExitCode Dispatch(int argc, const char* const* argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp();
    return ExitCode::kOk;
  }
  if (name == "--version") {
    fmt::print("haversack {}\n", HAVERSACK_VERSION);
    return ExitCode::kOk;
  }
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(argc - 1, argv + 1);
  }
  throw UserError(
      ExitCode::kUsage,
      "'{}' is not a command; there are train, plan, bench, eval, generate and tokenize "
      "(see haversack --help)",
      name);
}

// fmt::print throws where standard error is closed or full, and the exit code would be lost.
void Complain(const std::string& message) {
  if (message.empty()) return;  // another rank tells
  std::fputs(("haversack: " + message + "\n").c_str(), stderr);
}

}  // namespace

std::span<const Command> Commands() { return kCommands; }

ExitCode Main(int argc, const char* const* argv) {
  try {
    const ExitCode code = Dispatch(argc, argv);
    if (std::fflush(stdout) != 0) throw FileError("write", "standard output", errno);
    return code;
  } catch (const UserError& error) {
    Complain(error.what());
    return error.code();
  } catch (const std::bad_alloc&) {
    Complain("the system refused memory; close other programs or lower --memory");
    return ExitCode::kBudget;
  } catch (const std::exception& error) {
    Complain(fmt::format("bug: {}; please report it with the command line", error.what()));
    return ExitCode::kBug;
  }
}

}  // namespace haversack
