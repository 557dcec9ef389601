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
#include "dist/agreement.h"
#include "dist/batch_size.h"
#include "dist/gradient_order.h"
#include "dist/prediction.h"
#include "exec/arena.h"
#include "exec/executor.h"
#include "io/model_dir.h"
#include "optim/adamw_optimizer.h"
#include "train/accuracy.h"
#include "train/evaluate.h"
#include "train/micro_batches.h"
#include "train/network_summary.h"
#include "train/preparation.h"
#include "train/rank_files.h"
#include "train/signals.h"

namespace haversack {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Trainer {
 public:
  Trainer(const TrainOptions& options, const Communicator& world)
      : started_(Clock::now()),
        world_(world),
        run_(PrepareRun(options, world)),
        options_(run_.options),
        progress_(run_.progress),
        saved_step_(run_.progress.step),
        together_at_(run_.progress.step - 1) {}

  void Run() {
    if (!run_.plan) return;
    Together(world_, "the start", [&] {
      OpenArena();
      CheckDisk();
    });
    world_.traffic() = {};  // of the run, not of the start
    running_since_ = Clock::now();
    if (progress_.step == 0 || EvaluationDue()) Evaluate();
    while (!strategy_->Finished(progress_) && !Stopping()) {
      if (!Step()) continue;
      if (EvaluationDue()) Evaluate();
      if (SaveDue()) Save();
      together_at_ = progress_.step;
    }
    if (Stopping()) {
      Stop();
      return;
    }
    Together(world_, "the export", [&] {
      if (progress_.bad_in_row > 0) ThrowDiverged();
      Export();
    });
    Summarise();
  }

 private:
  // Of several ranks none stops by itself: the stop is agreed on before a step.
  bool Stopping() const { return world_.alone() ? StopSignal() != 0 : stop_agreed_; }
  // Whether a multiple of `every` was reached since all ranks were last at one point.
  bool Due(int64_t every) const {
    return every > 0 && progress_.step / every > together_at_ / every;
  }
  bool Last() const { return strategy_->Finished(progress_); }
  bool SaveDue() const { return Last() || Stopping() || Due(options_.save_every); }
  bool EvaluationDue() const {
    return (Last() || Due(options_.eval_every)) && progress_.evaluated_step != progress_.step;
  }
  void Log(const std::string& text) { run_.reporter->Line(text); }
  void TellNotes() {
    for (const std::string& note : strategy_->TakeNotes()) Log(note);
  }

  void OpenArena() {
    const Model& model = *run_.model;
    const ParamLayout& layout = model.layout;
    strategy_ = run_.strategy.get();
    // Measuring what compression costs may take more than the plan that comes of it.
    const bool calibrates = NeedsCalibration(run_);
    arena_ =
        std::make_unique<Arena>(calibrates ? run_.plan->memory.arena() - run_.plan->shared_bytes
                                           : run_.plan->chosen.arena_bytes());
    state_ = TakeModelState(*arena_, layout, run_.moments.get(), !options_.fused_update);
    const int64_t state_bytes = arena_->used();
    std::byte* region = arena_->Take("schedule", arena_->bytes() - state_bytes);
    arena_->FaultIn(0, state_bytes);
    const int64_t shared_bytes = strategy_->StateBytes();
    std::byte* shared = nullptr;
    if (shared_bytes > 0) {
      shared_arena_ = std::make_unique<Arena>(shared_bytes);
      shared = shared_arena_->Take("outer state and messages", shared_bytes);
      shared_arena_->FaultIn(0, shared_bytes);
    }
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
    PlanMicroBatches();
    strategy_->Open({.state = state_,
                     .memory = shared,
                     .micro_batch = chosen.plan.micro_batch,
                     .probe_loss = [this] { return ProbeLoss(); }});
    run_.checkpoints->set_rank_bytes(strategy_->RankFileBytes() * world_.size());
    if (run_.stored && run_.stored->contains("dist")) {
      strategy_->Restore(run_.checkpoints->Path(progress_.step), run_.stored->at("dist"),
                         progress_);
      TellNotes();
    }
    optimizer_ = std::make_unique<AdamWOptimizer>(model.graph, layout, *run_.moments, state_,
                                                  options_.adamw, options_.projections());
    lr_ = {.shape = options_.schedule,
           .peak = options_.lr,
           .final_ratio = options_.final_lr_ratio,
           .warmup_steps = options_.warmup,
           .total_steps = options_.steps};
    Log(fmt::format("first forward after {:.1f} s", SecondsSince(started_)));
  }

  void PlanMicroBatches() {
    const Model& model = *run_.model;
    const Candidate& chosen = run_.plan->chosen;
    micro_batches_ = std::make_unique<MicroBatches>(chosen.schedule);
    if (strategy_->overlaps()) {
      complete_from_ = CompleteFrom(model.graph, model.layout, chosen.schedule);
    }
    if (options_.dist.mode != DistMode::kAdloco) return;
    for (const int64_t size : PlannedSizes(chosen.plan.micro_batch - 1)) {
      Schedule schedule = Lower(model.graph, chosen.plan, {.sequences = size, .seq = options_.seq},
                                chosen.schedule.mode);
      if (schedule.arena_bytes > chosen.schedule.arena_bytes) continue;
      micro_batches_->AddSmaller(std::move(schedule));
    }
  }

  // On the first micro-batch of the held-out data, or of the training data where there are none.
  double ProbeLoss() {
    const Dataset& data = run_.valid ? *run_.valid : *run_.train;
    Batch batch;
    data.FillInOrder(0, evaluation_.shape.sequences, batch);
    double loss_sum = 0;
    executor_->Run(evaluation_, ViewOf(batch, 1, &loss_sum), false);
    return loss_sum / static_cast<double>(std::max<int64_t>(1, batch.valid_targets));
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
    if (!world_.leader()) return;
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
    const Evaluation result = haversack::Evaluate(
        *run_.valid, evaluation_, *executor_, strategy_->replicas(), [&] { return Stopping(); });
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

  // One optimizer step. Gradients are those of the loss summed over all valid targets of the
  // batch, divided by their number. Returns whether all ranks are at one point now.
  bool Step() {
    const auto start = Clock::now();
    const int64_t mine = micro_batches_->Draw(*run_.train, strategy_->Share(progress_));
    const StepTerms terms = strategy_->Agree(progress_, mine, StopSignal() != 0);
    if (terms.stop) {
      stop_agreed_ = true;
      return false;
    }
    const double lr = strategy_->Rate(lr_, progress_);
    StepReport report = {.step = progress_.step + 1,
                         .steps = options_.steps,
                         .loss = std::nullopt,
                         .tokens = terms.targets,
                         .lr = lr,
                         .plan = run_.plan->chosen.plan.name,
                         .dist = std::nullopt};
    if (terms.targets > 0) {
      Learn(lr, terms.targets, report);
    }
    report.step_s = SecondsSince(start);
    report.tokens_per_s = static_cast<double>(options_.batch * options_.seq) / report.step_s;
    report.live_peak_bytes =
        run_.plan->chosen.state_bytes + strategy_->StateBytes() + executor_->peak_bytes();
    report.predicted_peak_bytes = run_.plan->predicted_peak_bytes;
    report.rss_peak_bytes = PeakResidentBytes();
    std::vector<StepReport> reports;
    const bool together = strategy_->EndStep(progress_, report, reports);
    for (StepReport& done : reports) {
      run_.reporter->Step(done);
      train_sequences_ += done.dist ? done.dist->batch : options_.batch;
    }
    TellNotes();
    train_seconds_ += report.step_s;
    train_steps_ += 1;
    if (together) StopIfDiverged();
    return together;
  }

  // Gradients, and the sum of the losses, of this rank's micro-batches; of all ranks' where the
  // strategy joins them.
  void Backpropagate(int64_t valid, const Executor::UpdateParam& update, double& loss_sum) {
    const auto scale = static_cast<float>(1.0 / static_cast<double>(valid));
    std::vector<MicroStep>& steps = micro_batches_->steps();
    const Executor::RefreshProjection refresh = BeginProjections(steps.empty());
    if (steps.empty()) std::fill_n(state_.grads, run_.model->layout.grad_total, 0.0f);
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool last = i + 1 == steps.size();
      if (last && strategy_->overlaps()) {
        strategy_->BeginReduce();
        executor_->set_observer([&](const Schedule& of, const Instr& instr, double) {
          strategy_->Advance(complete_from_[&instr - of.instrs.data()]);
        });
      }
      const MicroStep& step = steps[i];
      MicroBatch batch = ViewOf(step.batch, scale, &loss_sum);
      batch.seed = options_.seed;
      batch.sample = step.cursor;
      executor_->Run(*step.schedule, batch, i > 0, update, i == 0 ? refresh : nullptr);
      strategy_->EndMicroBatch(step.sequences, step.batch.valid_targets, valid);
    }
    executor_->set_observer(nullptr);
    if (steps.empty()) strategy_->BeginReduce();
    strategy_->Reduce(progress_, loss_sum);
  }

  void Learn(double lr, int64_t valid, StepReport& report) {
    double loss_sum = 0;
    double squared_norm = 0;
    bool updated = false;
    const Executor::UpdateParam update = [&](ParamId param, float* grad) {
      squared_norm += SquaredNorm(grad, run_.model->graph.params[param].gradient_count());
      if (!std::isfinite(squared_norm) || !std::isfinite(loss_sum)) return;
      optimizer_->Update(param, grad);
      updated = true;
    };
    if (options_.fused_update) optimizer_->Begin(progress_.updates + 1, lr, 1);
    Backpropagate(valid, update, loss_sum);
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
    if (options_.fused_update) return;
    optimizer_->Begin(progress_.updates, lr, ClipFactor(report.grad_norm, options_.clip));
    optimizer_->UpdateAll();
  }

  // Moves to the projections of this step. Where they are new ones, what makes them in the step's
  // first micro-batch.
  // A rank that is `idle` in this step makes them at once.
  Executor::RefreshProjection BeginProjections(bool idle) {
    const auto count = static_cast<int>(run_.model->graph.projections.size());
    if (count == 0) return nullptr;
    const int64_t epoch = options_.projections().EpochOf(progress_.updates);
    executor_->set_projection_epoch(epoch);
    const int64_t before = progress_.projection_epoch.value_or(-1);
    if (before == epoch) return nullptr;
    progress_.projection_epoch = epoch;
    for (int index = 0; idle && index < count; ++index) {
      optimizer_->RefreshProjection(index, before, epoch, nullptr, 0);
    }
    return [this, before, epoch](int index, const float* x, int64_t tokens) {
      optimizer_->RefreshProjection(index, before, epoch, x, tokens);
    };
  }

  void StopIfDiverged() {
    if (progress_.bad_in_row < options_.max_bad_steps) return;
    Together(world_, "the end", [&] { ThrowDiverged(); });
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
    const nlohmann::json shared = strategy_->SaveInfo(progress_);
    const int64_t step = progress_.step;
    const auto leader = [&](const std::function<void()>& work) {
      Together(world_, "the checkpoint", [&] {
        if (world_.leader()) work();
      });
    };
    leader([&] {
      run_.reporter->SyncMetrics();
      run_.checkpoints->Begin(step, state_, options_.keep);
    });
    std::vector<std::string> files;
    if (!shared.is_null()) {
      try {
        Together(world_, "the checkpoint",
                 [&] { strategy_->SaveRank(run_.checkpoints->Writing(step)); });
      } catch (...) {
        if (world_.leader()) run_.checkpoints->Discard(step);
        throw;
      }
      for (int r = 0; r < world_.size(); ++r) files.push_back(RankFileName(r));
    }
    leader([&] { WriteCheckpoint(shared, best, files); });
    saved_step_ = step;
  }

  void WriteCheckpoint(const nlohmann::json& shared, bool best,
                       const std::vector<std::string>& files) {
    nlohmann::json info = {{"format", 1},
                           {"step", progress_.step},
                           {"progress", ToJson(progress_)},
                           {"identity", run_.identity},
                           {"micro_batch", run_.plan->chosen.plan.micro_batch},
                           {"plan", PlanToJson(run_.model->graph, run_.plan->chosen.plan)},
                           {"config", run_.model->config.json}};
    if (!shared.is_null()) info["dist"] = shared;
    run_.checkpoints->Finish(info, state_, options_.keep, best, files);
  }

  void Stop() {
    // The signal may have come after the step had decided that no save is due.
    if (saved_step_ != progress_.step) Save();
    const std::string next = saved_step_ != progress_.step && saved_step_ > 0
                                 ? fmt::format("--resume goes on after step {}", saved_step_)
                             : saved_step_ == 0 ? "there is no checkpoint yet"
                             : Last()           ? "--resume exports the model"
                                                : "--resume goes on from there";
    const std::string why =
        StopSignal() != 0 ? fmt::format("signal {}", StopSignal()) : "another rank's signal";
    Log(fmt::format("stopped by {} after step {}; {}", why, progress_.step, next));
  }

  void Export() {
    if (!world_.leader()) return;
    ExportModel(run_.model->graph, run_.model->layout, run_.model->config, state_.weights,
                options_.model, options_.export_dtype, run_.dir->model());
    run_.dir->EndExport(progress_.step, options_.export_dtype);
  }

  // Every rank calls it.
  void TellNetwork() {
    if (world_.alone()) return;
    const std::vector<Traffic> ranks = world_.AllGather(world_.traffic(), "the summary");
    const Candidate& chosen = run_.plan->chosen;
    const double sequences = static_cast<double>(train_sequences_);
    const auto targets =
        static_cast<double>(run_.train->targets()) / static_cast<double>(run_.train->sequences());
    const PredictedRun run = {
        .workers = world_.size(),
        .parameters = run_.model->layout.total,
        .tokens = sequences * targets,
        .tokens_per_sequence = targets,
        .batch = static_cast<double>(options_.batch),
        .seconds_per_sequence = 0,
        .micro_batch_sequences = static_cast<double>(chosen.plan.micro_batch)};
    if (train_sequences_ == 0 || !world_.leader()) return;
    const double seconds = SecondsSince(running_since_);
    for (const std::string& line : NetworkSummary(options_, run, ranks, seconds)) Log(line);
  }

  void Summarise() {
    if (train_steps_ > 0) {
      const auto positions = static_cast<double>(train_sequences_ * options_.seq);
      Log(fmt::format("done: {} steps in {:.0f} s, {:.0f} tokens/s (predicted {:.0f})",
                      progress_.step, SecondsSince(started_), positions / train_seconds_,
                      run_.plan->predicted_tokens_per_s));
    }
    if (first_loss_ && last_loss_) {
      Log(fmt::format("held-out loss {:.4f} before, {:.4f} after", *first_loss_, *last_loss_));
    }
    TellNetwork();
    Log(fmt::format("memory: predicted peak {}, measured {}, budget {}",
                    FormatBytes(run_.plan->predicted_peak_bytes), FormatBytes(PeakResidentBytes()),
                    FormatBytes(run_.budget)));
    if (progress_.skipped > 0) Log(fmt::format("{} steps were skipped", progress_.skipped));
    Log(fmt::format("model in {}, checkpoints in {}", run_.dir->model(), run_.dir->checkpoints()));
  }

  Clock::time_point started_;
  Clock::time_point running_since_;
  Communicator world_;
  PreparedRun run_;
  const TrainOptions& options_;
  Progress& progress_;
  int64_t saved_step_;  // the newest checkpoint's; 0: none

  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> shared_arena_;  // what the strategy keeps
  Strategy* strategy_ = nullptr;
  bool stop_agreed_ = false;
  int64_t together_at_;                 // the step at which all ranks were last at one point
  std::vector<int64_t> complete_from_;  // see CompleteFrom
  ModelState state_;
  Schedule evaluation_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<AdamWOptimizer> optimizer_;
  LrSchedule lr_;

  std::unique_ptr<MicroBatches> micro_batches_;
  std::optional<double> first_loss_, last_loss_;
  double train_seconds_ = 0;
  int64_t train_steps_ = 0;
  int64_t train_sequences_ = 0;  // of all ranks
};

}  // namespace

void TrainOn(const TrainOptions& options, const Communicator& world) {
  Trainer(options, world).Run();
}

}  // namespace haversack
