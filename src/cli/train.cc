#include "base/error.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "train/launch.h"

namespace haversack {

ExitCode TrainCommand(int argc, const char* const* argv) {
  TrainOptions options;
  Flags flags("train",
              "Trains or fine-tunes a model inside a memory budget and writes a Hugging Face "
              "directory to OUT/model.");
  AddTrainFlags(flags, options);
  flags.app().get_option("--out")->required();
  if (!flags.Parse(argc, argv)) return ExitCode::kOk;
  if (flags.app().count("--steps") == 0 && !options.tokens) {
    throw UserError(ExitCode::kUsage,
                    "haversack train: --steps or --tokens is required: how long "
                    "to train (see haversack train --help)");
  }
  CheckTrainOptions(options);
  Train(options);
  return ExitCode::kOk;
}

}  // namespace haversack
