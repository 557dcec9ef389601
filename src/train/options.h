// Everything that defines a training run, as the command line or a YAML file gives it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dist/options.h"
#include "kernels/matmul.h"
#include "models/config.h"
#include "optim/adamw_optimizer.h"
#include "optim/lr_schedule.h"

namespace haversack {

// The compute type that `text` ("auto", "f32", "bf16") means on this machine. "auto" is bf16 where
// the CPU has AMX tiles for it: elsewhere the BLAS library's bf16 product is slower than its f32
// product. Throws UserError (exit 2) where bf16 is asked for and cannot be had.
ComputeType ResolveComputeType(const std::string& text);

struct TrainOptions {
  std::string model;
  std::vector<std::string> data;
  std::vector<std::string> valid;
  std::string out;
  std::optional<uint64_t> memory;  // bytes for the whole process; default: 90% of what is free
  int64_t batch = 1;               // sequences per optimizer step
  int64_t seq = 512;
  int64_t steps = 0;
  std::optional<int64_t> tokens;  // targets to learn from; in place of steps
  bool random_init = false;
  uint64_t seed = 0;
  bool cross_document = false;

  double lr = 1e-4;
  LrShape schedule = LrShape::kCosine;
  double final_lr_ratio = 0.1;
  int64_t warmup = 0;
  double clip = 1.0;  // global gradient norm; 0: off
  AdamWOptions adamw;
  MomentType moments = MomentType::kF32;
  LowRankOptions low_rank;
  std::optional<int64_t> refresh;  // optimizer steps; default: 50 of compact, 500 of the others
  double low_rank_scale = 1;
  MomentRule moment_rule = MomentRule::kTransfer;
  bool fused_update = false;
  int64_t max_bad_steps = 5;  // non-finite steps in a row before the run stops

  std::string plan = "auto";                              // auto, keep, recompute, or a JSON file
  std::string actions = "keep,recompute,bf16,int8,int4";  // what plan "auto" may use
  // Most that compression's squared gradient error may be, as a share of the gradient's sampling
  // variance; nullopt: any.
  std::optional<double> noise_share = 0.01;
  std::optional<int64_t> micro_batch;
  int64_t loss_chunk = 256;
  ComputeType compute = ComputeType::kF32;
  int threads = 0;  // 0: the cores this process may use

  DistOptions dist;

  std::string metrics;
  int64_t save_every = 0;  // 0: at the end and on a signal only
  int64_t keep = 2;        // checkpoints, beside the best
  int64_t eval_every = 0;  // 0: at the start and the end only
  bool resume = false;
  std::string export_dtype = "F32";

  // What the model is built with.
  BuildOptions build() const;
  ProjectionOptions projections() const;
};

// Every flag but --out and --resume; it goes into run.json and into every checkpoint, and a resumed
// run is held against it. null: the default, where that is not a fixed value.
nlohmann::json RunIdentity(const TrainOptions& options);

// Compares the options of a resumed run with its checkpoint's. What a run may change midway is
// reported, one line each (the rate, its schedule, the number of steps, the budget, the plan, what
// is saved); what would give stored steps and data positions another meaning (--batch, --seq,
// --seed, ...) is a UserError (exit 2) naming the flag, the stored and the new value. --model and
// --data are compared by content, by whoever opens them. A --micro-batch that is not given stays
// what it was.
std::vector<std::string> CheckResumed(const nlohmann::json& stored, const nlohmann::json& now);

}  // namespace haversack
