#include "train/preparation.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/threads.h"
#include "dist/agreement.h"
#include "tokenizer/tokenizer.h"
#include "train/low_rank_report.h"
#include "train/signals.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

// One documented id ends documents: the tokenizer's end token, else the configuration's first.
int32_t EndOfDocument(const Tokenizer& tokenizer, const ModelConfig& config) {
  if (tokenizer.eos_id()) return *tokenizer.eos_id();
  if (!config.eos_ids.empty()) return config.eos_ids[0];
  return -1;
}

// Cores for each rank: those it is bound to, or its part of those that it shares.
int CoresOfRank(const Communicator& world) {
  if (world.local_size() == 1) return AvailableCores();
  const int all = static_cast<int>(std::thread::hardware_concurrency());
  return std::min(AvailableCores(), std::max(1, all / world.local_size()));
}

void ThrowIfStopped() {
  if (StopSignal() == 0) return;
  throw UserError(ExitCode::kOk, "stopped by signal {} before the first step", StopSignal());
}

class Preparation {
 public:
  Preparation(const TrainOptions& options, const Communicator& world) : world_(world) {
    run_.options = options;
  }

  PreparedRun Run() {
    Together(world_, "the start", [&] { OpenRun(); });
    WarmUpNetwork();
    ShareCheckpoint();
    Together(world_, "the data", [&] { OpenAll(); });
    if (NothingLeft()) return std::move(run_);
    AgreeOnMicroBatch();
    Together(world_, "the plan", [&] { Begin(); });
    return std::move(run_);
  }

 private:
  void Log(const std::string& text) { run_.reporter->Line(text); }

  // What the network library takes for itself comes with the first messages, and must be counted.
  void WarmUpNetwork() {
    if (world_.alone()) return;
    constexpr size_t kMessage = size_t{256} << 10, kAll = size_t{16} << 20;
    const auto ranks = static_cast<size_t>(world_.size());
    const std::vector<std::byte> mine(std::min(kMessage, kAll / ranks));
    std::vector<std::byte> all(mine.size() * ranks);
    for (int i = 0; i < 4; ++i) {
      world_.AllGatherBytes(mine.data(), mine.size(), all.data(), "the start");
    }
  }

  void OpenRun() {
    const TrainOptions& options = run_.options;
    SetNumThreads(options.threads > 0 ? options.threads : CoresOfRank(world_));
    run_.budget = ResolveBudget(options.memory, world_.local_size());
    run_.model =
        std::make_unique<Model>(OpenModel(options.model, options.build(), /*with_weights=*/false));
    run_.dir = std::make_unique<RunDir>(options.out, world_.leader());
    CheckModelIsNotExport();
    run_.moments = std::make_unique<MomentLayout>(run_.model->graph, options.moments);
    run_.checkpoints = std::make_unique<CheckpointStore>(run_.dir->checkpoints(), run_.model->graph,
                                                         run_.model->layout, *run_.moments);
    if (world_.leader()) {
      // A run that is only refused need not wait for its content to be read.
      run_.stored =
          run_.checkpoints->FindNewest(options.resume ? Verify::kContent : Verify::kSizes,
                                       [&](const std::string& line) { notes_.push_back(line); });
    }
  }

  // All ranks go on from the checkpoint that the leader found.
  void ShareCheckpoint() {
    if (world_.alone()) return;
    const std::string text = run_.stored ? run_.stored->dump() : "";
    const std::string shared = world_.Broadcast(text, 0, "the checkpoint's description");
    if (!shared.empty()) run_.stored = nlohmann::json::parse(shared);
  }

  void OpenAll() {
    const TrainOptions& options = run_.options;
    CheckCheckpoint();
    if (!options.random_init) OpenWeights(*run_.model);
    run_.reporter = std::make_unique<Reporter>(world_.leader() ? run_.dir->File("train.log") : "",
                                               run_.budget, !world_.leader());
    run_.strategy = MakeStrategy(options, run_.model->graph, run_.model->layout, world_);
    Introduce();
    OpenPlanner();
    OpenData();
    HoldAgainstCheckpoint();
    ResolveLength();
  }

  // A token budget is a number of steps where the batch is fixed: every epoch has the same targets.
  void ResolveLength() {
    TrainOptions& options = run_.options;
    RunLength length = {.steps = options.steps,
                        .tokens = std::nullopt,
                        .targets_per_sequence = static_cast<double>(run_.train->targets()) /
                                                static_cast<double>(run_.train->sequences())};
    if (options.tokens) {
      const double step_tokens = static_cast<double>(options.batch) * length.targets_per_sequence;
      const auto steps = static_cast<int64_t>(
          std::ceil(static_cast<double>(*options.tokens) / step_tokens - 1e-9));
      const bool adaptive = options.dist.mode == DistMode::kAdloco;
      if (adaptive) length.tokens = options.tokens;
      // Of an adaptive run that is what a batch that never grew would take.
      length.steps = options.steps > 0 && !adaptive ? std::min(options.steps, steps) : steps;
      options.steps = length.steps;
    }
    run_.strategy->set_length(length);
  }

  // From here on the run is under way.
  void Begin() {
    const TrainOptions& options = run_.options;
    MakePlan();
    ThrowIfStopped();
    if (!world_.leader()) return;
    run_.dir->WriteJson("run.json", run_.identity);
    run_.dir->WriteJson("plan.json", PlanToJson(run_.model->graph, run_.plan->chosen.plan));
    run_.dir->BeginExport();
    if (!options.metrics.empty()) {
      run_.reporter->OpenMetrics(options.metrics, run_.progress.step);
    }
  }

  void CheckModelIsNotExport() {
    std::error_code ignored;
    if (!fs::equivalent(run_.options.model, run_.dir->model(), ignored)) return;
    throw UserError(
        ExitCode::kUsage,
        "--model {} is where --out {} exports to, and would be overwritten; choose another "
        "--out",
        run_.options.model, run_.options.out);
  }

  void CheckCheckpoint() {
    const TrainOptions& options = run_.options;
    const std::optional<nlohmann::json>& found = run_.stored;
    if (options.resume && !found) {
      notes_.push_back("--resume: no complete checkpoint in " + options.out + ": starting anew");
    }
    if (!found) return;
    try {
      run_.progress = ProgressFromJson(found->at("progress"));
      found->at("identity").at("options");
      found->at("micro_batch").get<int64_t>();
    } catch (const nlohmann::json::exception& error) {
      throw UserError(
          ExitCode::kUsage,
          "the newest checkpoint in {} was written by another version ({}); start a new "
          "run with another --out",
          run_.dir->checkpoints(), error.what());
    }
    if (!options.resume) {
      throw UserError(
          ExitCode::kUsage,
          "--out {} already holds a run (checkpoint of step {}); pass --resume to go on "
          "with it, or another --out",
          options.out, run_.progress.step);
    }
    CheckMode();
    run_.checkpoints->set_best(run_.progress.best_step);
    // Before the model and the data are read: those take their time.
    for (const std::string& change :
         CheckResumed(run_.stored->at("identity").at("options"), RunIdentity(options))) {
      notes_.push_back("resumed run: " + change);
    }
  }

  // Runs that exchange gradients, or nothing, have one state, whatever their ranks; the others one
  // a rank, which only their own kind can go on from.
  void CheckMode() const {
    const std::string before =
        run_.stored->contains("dist") ? run_.stored->at("dist").at("mode") : "none or ddp";
    const DistMode mode = run_.options.dist.mode;
    const std::string now = run_.options.dist.local_steps() ? ToText(mode) : "none or ddp";
    if (before == now) return;
    throw UserError(ExitCode::kUsage,
                    "--dist is {} here, but the checkpoint's run has {}; pass the stored value, or "
                    "start a new run with another --out",
                    ToText(mode), before);
  }

  void Introduce() {
    const Model& model = *run_.model;
    Log(fmt::format("haversack {}: {} ({}), {} threads, {}, LibTorch {}", HAVERSACK_VERSION,
                    CpuModel(), CpuIsa(), NumThreads(), ToText(run_.options.compute),
                    HAVERSACK_TORCH_VERSION));
    Log(fmt::format("model {}: {}, {} layers, {:.1f}M parameters", run_.options.model,
                    model.config.model_type, model.config.layers,
                    static_cast<double>(model.graph.parameter_count()) / 1e6));
    if (run_.options.dist.on()) {
      Log(fmt::format("{} over {} ranks, {} on this machine", ToText(run_.options.dist.mode),
                      world_.size(), world_.local_size()));
    }
    for (const std::string& note : notes_) Log(note);
    for (const std::string& note : model.notes) Log("note: " + note);
  }

  // The tokenizer is gone by the time memory is counted.
  void OpenData() {
    const TrainOptions& options = run_.options;
    const Tokenizer tokenizer = Tokenizer::Load(options.model);
    const Encoder encoder = EncoderOf(tokenizer);
    const auto open = [&](const std::vector<std::string>& files) {
      auto data = std::make_unique<Dataset>(Dataset::Open(
          {.files = files,
           .seq = options.seq,
           .cross_document = options.cross_document,
           .seed = options.seed,
           .rules = {.eos_id = EndOfDocument(tokenizer, run_.model->config), .bos_id = -1},
           .model_dir = options.model,
           .cache_folder = CacheFolder(),
           .fallback_folder = run_.dir->path().string(),
           .memory = LeftOf(run_.budget),
           .log = [&](const std::string& line) { Log(line); },
           .poll = ThrowIfStopped},
          encoder));
      data->CheckVocabulary(run_.model->config.vocab, encoder);
      return data;
    };
    run_.train = open(options.data);
    Log("training data: " + run_.train->Summary());
    if (options.valid.empty()) return;
    run_.valid = open(options.valid);
    Log("held-out data: " + run_.valid->Summary());
  }

  void HoldAgainstCheckpoint() {
    run_.identity = {{"options", RunIdentity(run_.options)},
                     {"model_hash", ModelHash(*run_.model)},
                     {"data_hash", run_.train->hash()}};
    if (run_.valid) run_.identity["valid_hash"] = run_.valid->hash();
    if (!run_.stored) return;
    const nlohmann::json& before = run_.stored->at("identity");
    CheckContent("model_hash", "--model");
    CheckContent("data_hash", "--data");
    if (run_.valid && before.contains("valid_hash") &&
        before["valid_hash"] != run_.identity["valid_hash"]) {
      Log("resumed run: --valid holds other text than before; the best checkpoint is chosen anew");
      run_.progress.best_loss.reset();
      run_.progress.evaluated_step.reset();
    }
  }

  void CheckContent(const char* key, const char* flag) const {
    const nlohmann::json& before = run_.stored->at("identity");
    if (before.at(key) == run_.identity[key]) return;
    throw UserError(
        ExitCode::kUsage,
        "{} {} does not hold what the checkpoint's run had in {} (content hash {} here, "
        "{} there); pass the same, or start a new run with another --out",
        flag, run_.identity["options"][flag].dump(), before.at("options").at(flag).dump(),
        run_.identity[key].dump(), before.at(key).dump());
  }

  bool MidRound() const {
    return run_.stored->contains("dist") && run_.stored->at("dist").at("inner") > 0;
  }

  // A run that has done all steps has still to export where a kill came in between.
  bool NothingLeft() {
    if (!run_.stored) return false;
    const TrainOptions& options = run_.options;
    const int64_t done = run_.progress.step;
    if (!run_.strategy->Finished(run_.progress) || MidRound()) return false;
    if (done > options.steps && !options.tokens) {
      Log(fmt::format("nothing to do: the run has done {} steps, more than --steps {}", done,
                      options.steps));
      return true;
    }
    if (run_.dir->Exported(done, options.export_dtype)) {
      Log(fmt::format("nothing to do: the run has done {} of {} steps, and its model is in {}",
                      done, options.steps, run_.dir->model()));
      return true;
    }
    Log(fmt::format("all {} steps are done; the export is made now", done));
    return false;
  }

  // Whether it fits is told before the data is tokenised, which can take long.
  void OpenPlanner() {
    PlanRequest request = MakePlanRequest(run_.options, run_.model->graph);
    request.batch = run_.strategy->PlannedBatch();
    if (run_.stored) {
      const int64_t before = run_.stored->at("micro_batch");
      if (run_.options.fused_update && !request.micro_batch && before != run_.options.batch) {
        throw UserError(
            ExitCode::kUsage,
            "--fused-update needs a micro-batch equal to --batch {}, but the "
            "checkpoint's run has {}; leave --fused-update out, or pass --micro-batch {}",
            run_.options.batch, before, run_.options.batch);
      }
      // Another micro-batch would sum the gradient in another order: a resumed run keeps its own.
      if (!request.micro_batch) request.micro_batch = before;
      ContinueCompression(request);
    }
    if (!ParseActions(run_.options.actions, "--actions").codecs.empty() && request.automatic() &&
        !request.actions.lossy()) {
      Log("compression: off, as always with --dist and --method");
    }
    request_ = request;
    MakePlanner();
    if (continued_ && !run_.planner->Fits(run_.budget)) {
      Log("resumed run: the checkpoint's plan does not fit any more, so a new one is chosen: "
          "losses "
          "equal those of the uninterrupted run within the accuracy budget only");
      request_.plan.reset();
      MakePlanner();
    }
    const bool done =
        run_.stored && !run_.options.tokens && run_.progress.step >= run_.options.steps;
    if (!done) run_.planner->CheckFits(run_.budget);
  }

  // What compression changes is fixed for a run: the same flags go on with the checkpoint's plan.
  void ContinueCompression(PlanRequest& request) {
    if (!request.automatic()) return;
    const nlohmann::json& before = run_.stored->at("identity").at("options");
    const nlohmann::json now = RunIdentity(run_.options);
    for (const char* flag : {"--plan", "--actions", "--noise-share", "--memory", "--micro-batch"}) {
      if (before.value(flag, nlohmann::json()) != now.at(flag)) return;
    }
    auto plan = PlanFromJson(run_.model->graph, run_.stored->at("plan"), "the checkpoint's plan");
    plan.name = run_.stored->at("plan").at("name");
    continued_ = EncodesAny(plan);
    if (continued_) request.plan = std::move(plan);
  }

  void MakePlanner() {
    // A rank's last micro-batch of a step may be padded.
    const int64_t micro = request_.micro_batch.value_or(1);
    if (run_.options.dist.on()) request_.batch = (request_.batch + micro - 1) / micro * micro;
    run_.planner = std::make_unique<RunPlanner>(*run_.model, request_, run_.strategy->StateBytes());
  }

  // Ranks whose memory or speed differ might choose differently; the smallest choice fits all.
  void AgreeOnMicroBatch() {
    if (world_.alone()) return;
    Together(world_, "the plan", [&] { ChoosePlan(); });
    const int64_t mine = run_.plan->chosen.plan.micro_batch;
    const std::vector<int64_t> all = world_.AllGather(mine, "the plan");
    const int64_t agreed = *std::min_element(all.begin(), all.end());
    Together(world_, "the plan", [&] {
      if (agreed == mine) return;
      request_.micro_batch = agreed;
      MakePlanner();
      ChoosePlan();
    });
  }

  void ChoosePlan() { run_.plan = std::make_unique<RunPlan>(run_.planner->Plan(run_.budget)); }

  void MakePlan() {
    if (!run_.plan) ChoosePlan();
    run_.plan->predicted_tokens_per_s *=
        static_cast<double>(run_.options.batch) / static_cast<double>(request_.batch);
    Log(Verdict(*run_.plan));
    for (const std::string& line :
         DescribeLowRank(run_.model->graph, run_.plan->chosen.plan, run_.options)) {
      Log(line);
    }
    const int64_t before = run_.stored ? run_.stored->at("micro_batch").get<int64_t>() : 0;
    const int64_t now = run_.plan->chosen.plan.micro_batch;
    if (run_.stored && now != before) {
      Log(fmt::format(
          "resumed run: the micro-batch changes from {} to {}: losses equal those of the "
          "uninterrupted run to rounding only",
          before, now));
    }
  }

  const Communicator& world_;
  PreparedRun run_;
  PlanRequest request_;
  bool continued_ = false;          // the plan is the checkpoint's
  std::vector<std::string> notes_;  // until there is a log
};

}  // namespace

PreparedRun PrepareRun(const TrainOptions& options, const Communicator& world) {
  return Preparation(options, world).Run();
}

}  // namespace haversack
