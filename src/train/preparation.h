// Everything before the first step: model, data, checkpoint and plan are opened and held against
// each other, so that whatever can be wrong is found before anything is computed or overwritten.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/dataset.h"
#include "io/model.h"
#include "train/checkpoint.h"
#include "train/options.h"
#include "train/progress.h"
#include "train/reporter.h"
#include "train/run_dir.h"
#include "train/run_plan.h"
#include "train/strategy.h"

namespace haversack {

struct PreparedRun {
  TrainOptions options;
  int64_t budget = 0;  // bytes
  std::unique_ptr<RunDir> dir;
  std::unique_ptr<Model> model;
  std::unique_ptr<MomentLayout> moments;
  std::unique_ptr<CheckpointStore> checkpoints;
  std::unique_ptr<Reporter> reporter;
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> valid;        // none: no --valid
  std::optional<nlohmann::json> stored;  // the checkpoint that is resumed
  Progress progress;
  nlohmann::json identity;  // options, and the content hashes of model and data
  std::unique_ptr<Strategy> strategy;
  std::unique_ptr<RunPlanner> planner;
  std::unique_ptr<RunPlan> plan;  // none: nothing is left to do
};

// Throws UserError naming what is wrong; then the run directory's files are as they were, but for
// the log. Of several ranks all fail or none.
PreparedRun PrepareRun(const TrainOptions& options, const Communicator& world);

}  // namespace haversack
