#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/process_memory.h"
#include "exec/arena.h"
#include "exec/executor.h"
#include "io/model_dir.h"
#include "optim/adamw_optimizer.h"
#include "train/accuracy.h"
#include "train/evaluate.h"
#include "train/preparation.h"
#include "train/signals.h"

namespace haversack {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Trainer {
 public:
  explicit Trainer(const TrainOptions& options)
      : started_(Clock::now()),
        run_(PrepareRun(options)),
        options_(run_.options),
        progress_(run_.progress),
        saved_step_(run_.progress.step) {}

  void Run() {
    if (!run_.plan) return;
    OpenArena();
    CheckDisk();
    if (progress_.step == 0 || EvaluationDue()) Evaluate();
    while (progress_.step < options_.steps && !Stopping()) {
      Step();
      if (EvaluationDue()) Evaluate();
      if (SaveDue()) Save();
    }
    if (Stopping()) {
      Stop();
      return;
    }
    if (progress_.bad_in_row > 0) ThrowDiverged();
    Export();
    Summarise();
  }

 private:
  static bool Stopping() { return StopSignal() != 0; }
  bool Due(int64_t every) const { return every > 0 && progress_.step % every == 0; }
  bool Last() const { return progress_.step == options_.steps; }
  bool SaveDue() const { return Last() || Stopping() || Due(options_.save_every); }
  bool EvaluationDue() const {
    return (Last() || Due(options_.eval_every)) && progress_.evaluated_step != progress_.step;
  }
  void Log(const std::string& text) { run_.reporter->Line(text); }

  void OpenArena() {
    const Model& model = *run_.model;
    const ParamLayout& layout = model.layout;
    // Measuring what compression costs may take more than the plan that comes of it.
    const bool calibrates = NeedsCalibration(run_);
    arena_ = std::make_unique<Arena>(calibrates ? run_.plan->memory.arena()
                                                : run_.plan->chosen.arena_bytes());
    state_ = TakeModelState(*arena_, layout, run_.moments.get(), !options_.fused_update);
    const int64_t state_bytes = arena_->used();
    std::byte* region = arena_->Take("schedule", arena_->bytes() - state_bytes);
    arena_->FaultIn(0, state_bytes);
    if (run_.stored) {
      run_.checkpoints->LoadState(progress_.step, state_);
      Log(fmt::format("resumed after step {}", progress_.step));
    } else if (options_.random_init) {
      InitWeights(model.graph, layout, options_.seed, state_.weights);
    } else {
      LoadWeights(model.graph, layout, *model.files, state_.weights);
    }
    if (calibrates) Calibrate(region, arena_->bytes() - state_bytes);
    const Candidate& chosen = run_.plan->chosen;
    const int64_t schedule_bytes = chosen.schedule.arena_bytes;
    arena_->ShrinkTo(state_bytes + schedule_bytes);
    arena_->FaultIn(state_bytes, arena_->bytes());
    evaluation_ = Lower(model.graph, chosen.plan, chosen.schedule.shape, ScheduleMode::kEvaluate);
    HAVERSACK_CHECK(evaluation_.arena_bytes <= schedule_bytes,
                    "evaluation needs {} bytes, a step {}", evaluation_.arena_bytes,
                    schedule_bytes);
    executor_ = std::make_unique<Executor>(model.graph, layout, state_, region, schedule_bytes);
    optimizer_ = std::make_unique<AdamWOptimizer>(model.graph, layout, *run_.moments, state_,
                                                  options_.adamw, options_.projections());
    lr_ = {.shape = options_.schedule,
           .peak = options_.lr,
           .final_ratio = options_.final_lr_ratio,
           .warmup_steps = options_.warmup,
           .total_steps = options_.steps};
    Log(fmt::format("first forward after {:.1f} s", SecondsSince(started_)));
  }

  // The moments are zero before the first step, so their memory can hold two gradients; a resumed
  // run reads them again. 8-bit moments are too small: then the end of the region serves.
  void Calibrate(std::byte* region, int64_t region_bytes) {
    const int64_t bytes = run_.model->layout.grad_bytes();
    AccuracyMemory memory = {.weights = state_.weights,
                             .first = state_.m,
                             .second = state_.v,
                             .basis = state_.basis,
                             .workspace = state_.workspace,
                             .region = region,
                             .region_bytes = region_bytes};
    const bool small = run_.moments->bytes() < bytes;
    if (small) {
      memory.region_bytes = std::max<int64_t>(0, (region_bytes - 2 * bytes) / 64 * 64);
      memory.beyond_bytes = 2 * bytes;
      memory.first = reinterpret_cast<float*>(region + memory.region_bytes);
      memory.second = memory.first + run_.model->layout.grad_total;
    }
    FitPlanToAccuracy(run_, memory);
    if (small) return;
    std::memset(state_.m, 0, run_.moments->bytes());
    std::memset(state_.v, 0, run_.moments->bytes());
    if (run_.stored) run_.checkpoints->LoadState(progress_.step, state_);
  }

  // A full disk should show now, not after hours of work.
  void CheckDisk() {
    const int64_t left = options_.steps - progress_.step;
    if (left == 0) return;
    const CheckpointStore& checkpoints = *run_.checkpoints;
    const std::string path = run_.dir->path().string();
    const int64_t free = run_.dir->FreeBytes();
    const int64_t each = checkpoints.BytesEach();
    if (free + checkpoints.ReclaimedBytes(options_.keep) < each) {
      throw UserError(
          ExitCode::kDevice,
          "no room for a checkpoint in {}: it takes {}, {} are free; free some space or "
          "choose another --out",
          path, FormatBytes(each), FormatBytes(free));
    }
    // While one is written there are two, even with --keep 1; and the best beside the newest.
    const int64_t saves = 1 + (options_.save_every > 0 ? left / options_.save_every : 0);
    const int64_t together =
        std::min(saves, std::max<int64_t>(2, options_.keep) + (run_.valid ? 1 : 0));
    const int64_t needed = together * each - checkpoints.TotalBytes() +
                           ExportBytes(run_.model->graph, options_.export_dtype, options_.model);
    if (free >= needed) return;
    Log(fmt::format("warning: {} has {} free; checkpoints and the exported model may take {} more",
                    path, FormatBytes(free), FormatBytes(needed)));
  }

  // A signal ends it without a result; the resumed run does it again.
  void Evaluate() {
    if (!run_.valid) return;
    const Evaluation result = haversack::Evaluate(*run_.valid, evaluation_, *executor_, Stopping);
    if (!result.complete) return;
    const double loss = result.loss();
    run_.reporter->Evaluation(progress_.step, loss, result.tokens);
    (progress_.step == 0 ? first_loss_ : last_loss_) = loss;
    progress_.evaluated_step = progress_.step;
    progress_.evaluated_loss.reset();
    if (std::isfinite(loss)) progress_.evaluated_loss = loss;
    // Stopped after the save and before the evaluation: the checkpoint is there already.
    if (saved_step_ == progress_.step && MarkBest()) run_.checkpoints->set_best(progress_.step);
  }

  // Whether the weights of this step are the best of all that are saved.
  bool MarkBest() {
    if (progress_.step == 0 || progress_.evaluated_step != progress_.step) return false;
    if (!progress_.evaluated_loss) return false;
    if (progress_.best_loss && *progress_.best_loss <= *progress_.evaluated_loss) return false;
    progress_.best_loss = progress_.evaluated_loss;
    progress_.best_step = progress_.step;
    return true;
  }

  // One optimizer step. Gradients are those of the loss summed over all valid targets of the batch,
  // divided by their number.
  void Step() {
    const auto start = Clock::now();
    const int64_t micro = run_.plan->chosen.plan.micro_batch;
    const int64_t count = options_.batch / micro;
    batches_.resize(count);
    int64_t valid = 0;
    for (int64_t i = 0; i < count; ++i) {
      run_.train->Fill(progress_.cursor + i * micro, micro, batches_[i]);
      valid += batches_[i].valid_targets;
    }
    const double lr = lr_.At(progress_.step);
    StepReport report = {.step = progress_.step + 1,
                         .steps = options_.steps,
                         .loss = std::nullopt,
                         .tokens = valid,
                         .lr = lr,
                         .plan = run_.plan->chosen.plan.name};
    if (valid > 0) {
      Learn(lr, valid, report);
    }
    progress_.step += 1;
    progress_.cursor += options_.batch;
    report.step_s = SecondsSince(start);
    report.tokens_per_s = static_cast<double>(options_.batch * options_.seq) / report.step_s;
    report.live_peak_bytes = run_.plan->chosen.state_bytes + executor_->peak_bytes();
    report.predicted_peak_bytes = run_.plan->predicted_peak_bytes;
    report.rss_peak_bytes = PeakResidentBytes();
    run_.reporter->Step(report);
    train_seconds_ += report.step_s;
    train_steps_ += 1;
    StopIfDiverged();
  }

  void Learn(double lr, int64_t valid, StepReport& report) {
    double loss_sum = 0;
    const auto scale = static_cast<float>(1.0 / static_cast<double>(valid));
    double squared_norm = 0;
    bool updated = false;
    const Executor::UpdateParam update = [&](ParamId param, float* grad) {
      squared_norm += SquaredNorm(grad, run_.model->graph.params[param].gradient_count());
      if (!std::isfinite(squared_norm) || !std::isfinite(loss_sum)) return;
      optimizer_->Update(param, grad);
      updated = true;
    };
    if (options_.fused_update) optimizer_->Begin(progress_.updates + 1, lr, 1);
    const Executor::RefreshProjection refresh = BeginProjections();
    for (size_t i = 0; i < batches_.size(); ++i) {
      MicroBatch batch = ViewOf(batches_[i], scale, &loss_sum);
      batch.seed = options_.seed;
      batch.sample = progress_.cursor + i * run_.plan->chosen.plan.micro_batch;
      executor_->Run(run_.plan->chosen.schedule, batch, i > 0, update, i == 0 ? refresh : nullptr);
    }
    report.grad_norm = options_.fused_update ? std::sqrt(squared_norm)
                                             : GradientNorm(run_.model->layout, state_.grads);
    report.loss = loss_sum / static_cast<double>(valid);
    report.skipped = !std::isfinite(loss_sum) || !std::isfinite(report.grad_norm);
    if (report.skipped) {
      if (updated) ThrowTorn(report.step);
      progress_.skipped += 1;
      progress_.bad_in_row += 1;
      Log(fmt::format("step {} skipped: loss {}, gradient norm {}", report.step, *report.loss,
                      report.grad_norm));
      return;
    }
    progress_.bad_in_row = 0;
    progress_.updates += 1;
    progress_.tokens += valid;
    last_train_loss_ = *report.loss;
    if (options_.fused_update) return;
    optimizer_->Begin(progress_.updates, lr, ClipFactor(report.grad_norm, options_.clip));
    optimizer_->UpdateAll();
  }

  // Moves to the projections of this step. Where they are new ones, what makes them in the step's
  // first micro-batch.
  Executor::RefreshProjection BeginProjections() {
    if (run_.model->graph.projections.empty()) return nullptr;
    const int64_t epoch = options_.projections().EpochOf(progress_.updates);
    executor_->set_projection_epoch(epoch);
    const int64_t before = progress_.projection_epoch.value_or(-1);
    if (before == epoch) return nullptr;
    progress_.projection_epoch = epoch;
    return [this, before, epoch](int index, const float* x, int64_t tokens) {
      optimizer_->RefreshProjection(index, before, epoch, x, tokens);
    };
  }

  void StopIfDiverged() {
    if (progress_.bad_in_row >= options_.max_bad_steps) ThrowDiverged();
  }

  [[noreturn]] void ThrowDiverged() const {
    throw UserError(
        ExitCode::kDiverged,
        "training diverged: {} steps in a row had a loss or gradient that is not finite "
        "(the last was step {}); nothing was exported; lower --lr or lengthen --warmup, "
        "and go on from the last checkpoint",
        progress_.bad_in_row, progress_.step);
  }

  [[noreturn]] void ThrowTorn(int64_t step) const {
    throw UserError(
        ExitCode::kDiverged,
        "training diverged: in step {} a gradient is not finite after other tensors were "
        "updated, and --fused-update cannot take that back; nothing was saved or exported; "
        "lower --lr or lengthen --warmup, and go on from the last checkpoint",
        step);
  }

  void Save() {
    if (progress_.bad_in_row > 0) {
      Log("no checkpoint: the last step was not finite");
      return;
    }
    const bool best = MarkBest();
    run_.reporter->SyncMetrics();
    run_.checkpoints->Save({{"format", 1},
                            {"step", progress_.step},
                            {"progress", ToJson(progress_)},
                            {"identity", run_.identity},
                            {"micro_batch", run_.plan->chosen.plan.micro_batch},
                            {"plan", PlanToJson(run_.model->graph, run_.plan->chosen.plan)},
                            {"config", run_.model->config.json}},
                           state_, options_.keep, best);
    saved_step_ = progress_.step;
  }

  void Stop() {
    // The signal may have come after the step had decided that no save is due.
    if (saved_step_ != progress_.step) Save();
    const std::string next = saved_step_ != progress_.step && saved_step_ > 0
                                 ? fmt::format("--resume goes on after step {}", saved_step_)
                             : saved_step_ == 0 ? "there is no checkpoint yet"
                             : Last()           ? "--resume exports the model"
                                                : "--resume goes on from there";
    Log(fmt::format("stopped by signal {} after step {}; {}", StopSignal(), progress_.step, next));
  }

  void Export() {
    ExportModel(run_.model->graph, run_.model->layout, run_.model->config, state_.weights,
                options_.model, options_.export_dtype, run_.dir->model());
    run_.dir->EndExport(progress_.step, options_.export_dtype);
  }

  void Summarise() {
    if (train_steps_ > 0) {
      const auto positions = static_cast<double>(train_steps_ * options_.batch * options_.seq);
      Log(fmt::format("done: {} steps in {:.0f} s, {:.0f} tokens/s (predicted {:.0f})",
                      progress_.step, SecondsSince(started_), positions / train_seconds_,
                      run_.plan->predicted_tokens_per_s));
    }
    if (first_loss_ && last_loss_) {
      Log(fmt::format("held-out loss {:.4f} before, {:.4f} after", *first_loss_, *last_loss_));
    }
    Log(fmt::format("memory: predicted peak {}, measured {}, budget {}",
                    FormatBytes(run_.plan->predicted_peak_bytes), FormatBytes(PeakResidentBytes()),
                    FormatBytes(run_.budget)));
    if (progress_.skipped > 0) Log(fmt::format("{} steps were skipped", progress_.skipped));
    Log(fmt::format("model in {}, checkpoints in {}", run_.dir->model(), run_.dir->checkpoints()));
  }

  Clock::time_point started_;
  PreparedRun run_;
  const TrainOptions& options_;
  Progress& progress_;
  int64_t saved_step_;  // the newest checkpoint's; 0: none

  std::unique_ptr<Arena> arena_;
  ModelState state_;
  Schedule evaluation_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<AdamWOptimizer> optimizer_;
  LrSchedule lr_;

  std::vector<Batch> batches_;
  std::optional<double> first_loss_, last_loss_, last_train_loss_;
  double train_seconds_ = 0;
  int64_t train_steps_ = 0;
};

}  // namespace

void Train(const TrainOptions& options) {
  InstallStopSignals();
  Trainer(options).Run();
}

}  // namespace haversack
