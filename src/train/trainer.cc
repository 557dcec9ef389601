#include "train/trainer.h"

#include <sys/statvfs.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/cache_folder.h"
#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/process_memory.h"
#include "base/threads.h"
#include "data/dataset.h"
#include "exec/arena.h"
#include "exec/executor.h"
#include "io/model.h"
#include "io/model_dir.h"
#include "optim/adamw_optimizer.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/reporter.h"
#include "train/run_plan.h"
#include "train/signals.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Where a run stands; the part of a checkpoint that is not tensors.
struct Progress {
  int64_t step = 0;      // optimizer steps done, skipped ones included
  int64_t updates = 0;   // steps that changed the weights: Adam's t
  uint64_t cursor = 0;   // sequences drawn
  int64_t tokens = 0;    // targets learned from
  int64_t skipped = 0;   // non-finite steps
  int64_t bad_in_row = 0;
  std::optional<double> best_loss;
  std::optional<int64_t> best_step;
};

nlohmann::json ToJson(const Progress& p) {
  nlohmann::json json = {{"step", p.step},       {"updates", p.updates},
                         {"cursor", p.cursor},   {"tokens", p.tokens},
                         {"skipped", p.skipped}, {"bad_in_row", p.bad_in_row}};
  if (p.best_loss) json["best_loss"] = *p.best_loss;
  if (p.best_step) json["best_step"] = *p.best_step;
  return json;
}

Progress ProgressFromJson(const nlohmann::json& json) {
  Progress p;
  p.step = json.at("step");
  p.updates = json.at("updates");
  p.cursor = json.at("cursor");
  p.tokens = json.at("tokens");
  p.skipped = json.at("skipped");
  p.bad_in_row = json.at("bad_in_row");
  if (json.contains("best_loss")) p.best_loss = json["best_loss"].get<double>();
  if (json.contains("best_step")) p.best_step = json["best_step"].get<int64_t>();
  return p;
}

// Tokenised training and held-out data. The tokenizer itself is gone by the time memory is counted.
struct Data {
  Dataset train;
  std::optional<Dataset> valid;
};

class Trainer {
 public:
  explicit Trainer(const TrainOptions& options)
      : options_(options), run_dir_(options.out), started_(Clock::now()) {}

  void Run() {
    Prepare();
    if (Finished()) return;
    OpenArena();
    CheckDisk();
    if (progress_.step == 0) Evaluate();
    while (progress_.step < options_.steps && StopSignal() == 0) {
      Step();
      const bool last = progress_.step == options_.steps || StopSignal() != 0;
      const bool evaluate = valid_ && (last || Due(options_.eval_every));
      if (evaluate && StopSignal() == 0) Evaluate();
      if (last || Due(options_.save_every)) Save();
    }
    if (StopSignal() != 0) {
      reporter_->Line(fmt::format("stopped by signal {} after step {}; --resume goes on from there",
                                  StopSignal(), progress_.step));
      return;
    }
    Export();
    Summarise();
  }

 private:
  bool Due(int64_t every) const { return every > 0 && progress_.step % every == 0; }
  void Log(const std::string& text) { reporter_->Line(text); }

  // Model, data, checkpoint and plan: everything that can be wrong is found here.
  void Prepare() {
    SetNumThreads(options_.threads > 0 ? options_.threads : AvailableCores());
    budget_ = ResolveBudget(options_.memory);
    model_ = std::make_unique<Model>(
        OpenModel(options_.model, options_.seq, options_.loss_chunk, !options_.random_init));
    MakeRunDir();
    checkpoints_ = std::make_unique<CheckpointStore>((run_dir_ / "checkpoints").string(),
                                                     model_->graph, model_->layout);
    FindCheckpoint();
    reporter_ = std::make_unique<Reporter>((run_dir_ / "train.log").string(), options_.metrics,
                                           progress_.step, budget_);
    Log(fmt::format("haversack {}: {} ({}), {} threads, f32, LibTorch {}", HAVERSACK_VERSION,
                    CpuModel(), CpuIsa(), NumThreads(), HAVERSACK_TORCH_VERSION));
    Log(fmt::format("model {}: {}, {} layers, {:.1f}M parameters", options_.model,
                    model_->config.model_type, model_->config.layers,
                    static_cast<double>(model_->graph.parameter_count()) / 1e6));
    for (const std::string& note : notes_) Log(note);
    for (const std::string& note : model_->notes) Log("note: " + note);
    OpenData();
    HoldAgainstCheckpoint();
    if (Finished()) return;
    PlanRequest request = MakePlanRequest(options_, model_->graph);
    // Another micro-batch would sum the gradient in another order: a resumed run keeps its own.
    if (stored_ && !options_.micro_batch) request.micro_batch = stored_->at("micro_batch");
    plan_ = std::make_unique<RunPlan>(
        RunPlanner(*model_, request, options_.loss_chunk).Plan(budget_));
    Log(Verdict(*plan_));
    WriteJson("plan.json", PlanToJson(model_->graph, plan_->chosen.plan));
  }

  void MakeRunDir() {
    std::error_code error;
    fs::create_directories(run_dir_, error);
    if (error) throw FileError("create", run_dir_.string(), error.value());
  }

  void WriteJson(const char* name, const nlohmann::json& json) {
    const std::string text = json.dump(1) + "\n";
    File file = File::Create((run_dir_ / name).string());
    file.WriteAt(text.data(), text.size(), 0);
  }

  void FindCheckpoint() {
    std::optional<nlohmann::json> found =
        checkpoints_->FindNewest([&](const std::string& line) { notes_.push_back(line); });
    if (found && !options_.resume) {
      throw UserError(ExitCode::kUsage,
                      "--out {} already holds a run (checkpoint of step {}); pass --resume to go on "
                      "with it, or another --out",
                      options_.out, (*found)["progress"].at("step").get<int64_t>());
    }
    if (options_.resume && !found) {
      notes_.push_back("--resume: no complete checkpoint in " + options_.out + ": starting anew");
    }
    if (!found) return;
    stored_ = std::move(found);
    progress_ = ProgressFromJson(stored_->at("progress"));
    checkpoints_->set_best(progress_.best_step);
  }

  bool Finished() const { return stored_ && progress_.step >= options_.steps; }

  void OpenData() {
    const Tokenizer tokenizer = Tokenizer::Load(options_.model);
    const Encoder encoder = EncoderOf(tokenizer);
    const auto open = [&](const std::vector<std::string>& files) {
      Dataset data = Dataset::Open(
          {.files = files,
           .seq = options_.seq,
           .cross_document = options_.cross_document,
           .seed = options_.seed,
           .rules = {.eos_id = EndOfDocument(tokenizer), .bos_id = -1},
           .model_dir = options_.model,
           .cache_folder = CacheFolder(),
           .fallback_folder = run_dir_.string(),
           .log = [&](const std::string& line) { Log(line); },
           .poll =
               [] {
                 if (StopSignal() != 0) {
                   throw UserError(ExitCode::kOk, "stopped before the first step");
                 }
               }},
          encoder);
      data.CheckVocabulary(model_->config.vocab, encoder);
      return data;
    };
    train_ = std::make_unique<Dataset>(open(options_.data));
    Log("training data: " + train_->Summary());
    if (!options_.valid.empty()) {
      valid_ = std::make_unique<Dataset>(open(options_.valid));
      Log("held-out data: " + valid_->Summary());
    }
  }

  // One documented id ends documents: the tokenizer's end token, else the configuration's first.
  int32_t EndOfDocument(const Tokenizer& tokenizer) const {
    if (tokenizer.eos_id()) return *tokenizer.eos_id();
    if (!model_->config.eos_ids.empty()) return model_->config.eos_ids[0];
    return -1;
  }

  void HoldAgainstCheckpoint() {
    identity_ = {{"options", RunIdentity(options_)},
                 {"model_hash", ModelHash(*model_)},
                 {"data_hash", train_->hash()}};
    WriteJson("run.json", identity_);
    if (!stored_) return;
    for (const std::string& change :
         CheckResumed(stored_->at("identity").at("options"), identity_["options"])) {
      Log("resumed run: " + change);
    }
    const auto same = [&](const char* key, const char* flag) {
      if (stored_->at("identity").at(key) == identity_[key]) return;
      throw UserError(ExitCode::kUsage,
                      "{} is not what the checkpoint's run had (content hash {} there, {} here); "
                      "pass the same, or start a new run with another --out",
                      flag, stored_->at("identity").at(key).get<std::string>(),
                      identity_[key].get<std::string>());
    };
    same("model_hash", "--model");
    same("data_hash", "--data");
    if (Finished()) {
      Log(fmt::format("nothing to do: the run has done {} of {} steps", progress_.step,
                      options_.steps));
    }
  }

  void OpenArena() {
    const ParamLayout& layout = model_->layout;
    const int64_t schedule_bytes = plan_->chosen.schedule.arena_bytes;
    evaluation_ = Lower(model_->graph, plan_->chosen.plan, plan_->chosen.schedule.shape,
                        ScheduleMode::kEvaluate);
    HAVERSACK_CHECK(evaluation_.arena_bytes <= schedule_bytes, "evaluation needs {} bytes, a step {}",
                    evaluation_.arena_bytes, schedule_bytes);
    arena_ = std::make_unique<Arena>(plan_->chosen.arena_bytes());
    const auto take = [&](const char* name) {
      return reinterpret_cast<float*>(arena_->Take(name, layout.bytes()));
    };
    state_.weights = take("weights");
    if (!options_.fused_update) state_.grads = take("gradients");
    state_.m = take("first moments");
    state_.v = take("second moments");
    std::byte* region = arena_->Take("schedule", schedule_bytes);
    arena_->FaultIn();
    if (stored_) {
      checkpoints_->LoadState(progress_.step, state_);
      Log(fmt::format("resumed after step {}", progress_.step));
    } else if (options_.random_init) {
      InitWeights(model_->graph, layout, options_.seed, state_.weights);
    } else {
      LoadWeights(model_->graph, layout, *model_->files, state_.weights);
    }
    executor_ =
        std::make_unique<Executor>(model_->graph, layout, state_, region, schedule_bytes);
    optimizer_ =
        std::make_unique<AdamWOptimizer>(model_->graph, layout, state_, options_.adamw);
    lr_ = {.shape = options_.schedule,
           .peak = options_.lr,
           .final_ratio = options_.final_lr_ratio,
           .warmup_steps = options_.warmup,
           .total_steps = options_.steps};
    Log(fmt::format("first forward after {:.1f} s", SecondsSince(started_)));
  }

  // A full disk should show now, not after hours of work.
  void CheckDisk() {
    struct statvfs stat;
    if (statvfs(run_dir_.c_str(), &stat) != 0) return;
    const auto free = static_cast<int64_t>(uint64_t{stat.f_bavail} * stat.f_frsize);
    const int64_t each = checkpoints_->BytesEach();
    const int64_t exported = ExportBytes(model_->graph, options_.export_dtype);
    const int64_t saves =
        options_.save_every > 0 ? std::min<int64_t>(options_.keep + 1, 1 + options_.steps / options_.save_every) : 1;
    if (free < each) {
      throw UserError(ExitCode::kDevice,
                      "no room for a checkpoint in {}: it takes {}, {} are free; free some space or "
                      "choose another --out",
                      run_dir_.string(), FormatBytes(each), FormatBytes(free));
    }
    const int64_t needed = saves * each + exported;
    if (free < needed) {
      Log(fmt::format("warning: {} has {} free; the checkpoints and the exported model may take {}",
                      run_dir_.string(), FormatBytes(free), FormatBytes(needed)));
    }
  }

  void Evaluate() {
    if (!valid_) return;
    const Evaluation result = haversack::Evaluate(*valid_, evaluation_, *executor_);
    reporter_->Evaluation(progress_.step, result.loss(), result.tokens);
    (progress_.step == 0 ? first_loss_ : last_loss_) = result.loss();
    if (progress_.step > 0 && (!progress_.best_loss || result.loss() < *progress_.best_loss)) {
      progress_.best_loss = result.loss();
      evaluated_best_ = true;
    }
  }

  // One optimizer step. Gradients are those of the loss summed over all valid targets of the batch,
  // divided by their number.
  void Step() {
    const auto start = Clock::now();
    const int64_t micro = plan_->chosen.plan.micro_batch;
    const int64_t count = options_.batch / micro;
    batches_.resize(count);
    int64_t valid = 0;
    for (int64_t i = 0; i < count; ++i) {
      train_->Fill(progress_.cursor + i * micro, micro, batches_[i]);
      valid += batches_[i].valid_targets;
    }
    const double lr = lr_.At(progress_.step);
    StepReport report = {.step = progress_.step + 1,
                         .steps = options_.steps,
                         .loss = std::nullopt,
                         .tokens = valid,
                         .lr = lr,
                         .plan = plan_->chosen.plan.name};
    if (valid > 0) {
      Learn(lr, valid, report);
    }
    progress_.step += 1;
    progress_.cursor += options_.batch;
    report.step_s = SecondsSince(start);
    report.tokens_per_s = static_cast<double>(options_.batch * options_.seq) / report.step_s;
    report.live_peak_bytes = plan_->chosen.state_bytes + executor_->peak_bytes();
    report.predicted_peak_bytes = plan_->predicted_peak_bytes;
    report.rss_peak_bytes = PeakResidentBytes();
    reporter_->Step(report);
    train_seconds_ += report.step_s;
    train_steps_ += 1;
    StopIfDiverged();
  }

  void Learn(double lr, int64_t valid, StepReport& report) {
    double loss_sum = 0;
    const auto scale = static_cast<float>(1.0 / static_cast<double>(valid));
    double squared_norm = 0;
    const Executor::UpdateParam update = [&](ParamId param, const float* grad) {
      const double squared = SquaredNorm(grad, model_->graph.params[param].count());
      squared_norm += squared;
      if (std::isfinite(squared) && std::isfinite(loss_sum)) optimizer_->Update(param, grad);
    };
    if (options_.fused_update) optimizer_->Begin(progress_.updates + 1, lr, 1);
    for (size_t i = 0; i < batches_.size(); ++i) {
      executor_->Run(plan_->chosen.schedule, ViewOf(batches_[i], scale, &loss_sum), i > 0, update);
    }
    report.grad_norm = options_.fused_update ? std::sqrt(squared_norm)
                                             : GradientNorm(model_->layout, state_.grads);
    report.loss = loss_sum / static_cast<double>(valid);
    report.skipped = !std::isfinite(loss_sum) || !std::isfinite(report.grad_norm);
    if (report.skipped) {
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

  void StopIfDiverged() {
    if (progress_.bad_in_row < options_.max_bad_steps) return;
    throw UserError(ExitCode::kDiverged,
                    "training diverged: {} steps in a row had a loss or gradient that is not finite "
                    "(the last was step {}); nothing was exported; lower --lr or lengthen --warmup, "
                    "and go on from the last checkpoint",
                    progress_.bad_in_row, progress_.step);
  }

  void Save() {
    if (progress_.bad_in_row > 0) {
      Log("no checkpoint: the last step was not finite");
      return;
    }
    if (evaluated_best_) {
      progress_.best_step = progress_.step;
      checkpoints_->set_best(progress_.best_step);
      evaluated_best_ = false;
    }
    checkpoints_->Save({{"format", 1},
                        {"step", progress_.step},
                        {"progress", ToJson(progress_)},
                        {"identity", identity_},
                        {"micro_batch", plan_->chosen.plan.micro_batch},
                        {"plan", PlanToJson(model_->graph, plan_->chosen.plan)},
                        {"config", model_->config.json}},
                       state_, options_.keep);
  }

  void Export() {
    const double norm = GradientNorm(model_->layout, state_.weights);
    if (!std::isfinite(norm)) {
      throw UserError(ExitCode::kDiverged,
                      "the model holds numbers that are not finite; it was not exported");
    }
    ExportModel(model_->graph, model_->layout, model_->config, state_.weights, options_.model,
                options_.export_dtype, (run_dir_ / "model").string());
  }

  void Summarise() {
    Log(fmt::format("done: {} steps in {:.0f} s, {:.0f} tokens/s (predicted {:.0f})",
                    progress_.step, SecondsSince(started_),
                    static_cast<double>(train_steps_ * options_.batch * options_.seq) / train_seconds_,
                    plan_->predicted_tokens_per_s));
    if (first_loss_ && last_loss_) {
      Log(fmt::format("held-out loss {:.4f} before, {:.4f} after", *first_loss_, *last_loss_));
    }
    Log(fmt::format("memory: predicted peak {}, measured {}, budget {}",
                    FormatBytes(plan_->predicted_peak_bytes), FormatBytes(PeakResidentBytes()),
                    FormatBytes(budget_)));
    if (progress_.skipped > 0) Log(fmt::format("{} steps were skipped", progress_.skipped));
    Log(fmt::format("model in {}, checkpoints in {}", (run_dir_ / "model").string(),
                    (run_dir_ / "checkpoints").string()));
  }

  TrainOptions options_;
  fs::path run_dir_;
  Clock::time_point started_;
  int64_t budget_ = 0;
  std::vector<std::string> notes_;

  std::unique_ptr<Model> model_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<Dataset> train_, valid_;
  std::optional<nlohmann::json> stored_;  // the checkpoint that is resumed
  nlohmann::json identity_;
  std::unique_ptr<RunPlan> plan_;

  std::unique_ptr<Arena> arena_;
  ModelState state_;
  Schedule evaluation_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<AdamWOptimizer> optimizer_;
  LrSchedule lr_;

  Progress progress_;
  std::vector<Batch> batches_;
  bool evaluated_best_ = false;
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
