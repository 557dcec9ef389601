#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/cache_folder.h"
#include "base/process_memory.h"
#include "base/threads.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "exec/arena.h"
#include "io/model.h"
#include "io/model_dir.h"
#include "tokenizer/tokenizer.h"
#include "train/evaluate.h"
#include "train/run_plan.h"

namespace haversack {
namespace {

struct EvalOptions {
  std::string model;
  std::vector<std::string> data;
  std::optional<uint64_t> memory;
  int64_t seq = 512;
  int64_t loss_chunk = 256;
  int threads = 0;
};

// A text file is one sequence without special tokens, so that every token but the first is
// predicted once; records are evaluated as they are trained on.
Dataset OpenEvalData(const EvalOptions& options, const Model& model, int64_t budget) {
  const Tokenizer tokenizer = Tokenizer::Load(options.model);
  const Encoder encoder = EncoderOf(tokenizer);
  bool records = true;
  for (const CorpusFile& file : ListCorpusFiles(options.data)) {
    records &= file.kind == FileKind::kRecords;
  }
  const int32_t end = tokenizer.eos_id().value_or(-1);
  Dataset data =
      Dataset::Open({.files = options.data,
                     .seq = options.seq,
                     .cross_document = false,
                     .seed = 0,
                     .rules = {.eos_id = records ? end : -1, .bos_id = -1},
                     .model_dir = options.model,
                     .cache_folder = CacheFolder(),
                     .fallback_folder = std::filesystem::temp_directory_path().string(),
                     .memory = LeftOf(budget),
                     .log = [](const std::string& line) { fmt::print(stderr, "{}\n", line); },
                     .poll = {}},
                    encoder);
  data.CheckVocabulary(model.config.vocab, encoder);
  fmt::print(stderr, "data: {}\n", data.Summary());
  return data;
}

// What a thread's share of the BLAS library's packing buffers may come to.
constexpr int64_t kBlasBytesPerThread = int64_t{16} << 20;

// Threads evaluate windows of their own where there is memory for that, else one window together.
int ExecutorsFor(int64_t weight_bytes, int64_t schedule_bytes, int64_t available) {
  const int64_t threads = NumThreads();
  const int64_t each = static_cast<int64_t>(AlignUp(schedule_bytes, 64)) + kBlasBytesPerThread;
  return weight_bytes + threads * each <= available ? static_cast<int>(threads) : 1;
}

Evaluation EvaluateWindows(const Model& model, const Dataset& data, const Schedule& schedule,
                           int64_t available) {
  const int count = ExecutorsFor(model.layout.bytes(), schedule.arena_bytes, available);
  const auto each = static_cast<int64_t>(AlignUp(schedule.arena_bytes, 64));
  Arena arena(model.layout.bytes() + count * each);
  ModelState state;
  state.weights = reinterpret_cast<float*>(arena.Take("weights", model.layout.bytes()));
  LoadWeights(model.graph, model.layout, *model.files, state.weights);
  std::vector<Executor> executors;
  for (int i = 0; i < count; ++i) {
    executors.emplace_back(model.graph, model.layout, state, arena.Take("schedule", each), each);
  }
  if (count == 1) return Evaluate(data, schedule, executors[0], Communicator());
  return EvaluateInParallel(data, schedule, executors);
}

}  // namespace

ExitCode EvalCommand(int argc, const char* const* argv) {
  EvalOptions options;
  Flags flags("eval", "Prints one JSON line: loss (nats a token), perplexity, tokens.");
  CLI::App& app = flags.app();
  app.add_option("--model", options.model, "Hugging Face model directory")
      ->required()
      ->type_name("DIR");
  app.add_option("--data", options.data, "text or JSONL files or folders")
      ->required()
      ->type_name("FILE...");
  app.add_option("--seq", options.seq, "tokens per window")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  flags.AddBytes("--memory", options.memory,
                 "budget for the whole process (default: 90% of what is free)");
  app.add_option("--threads", options.threads, "compute threads (default: all cores)")
      ->check(CLI::Range(0, 4096));
  flags.AddConfig();
  if (!flags.Parse(argc, argv)) return ExitCode::kOk;

  SetNumThreads(options.threads > 0 ? options.threads : AvailableCores());
  const int64_t budget = ResolveBudget(options.memory);
  const Model model =
      OpenModel(options.model, {.positions = options.seq, .loss_chunk = options.loss_chunk}, true);
  for (const std::string& note : model.notes) fmt::print(stderr, "note: {}\n", note);
  const Schedule schedule = Lower(model.graph, KeepPlan(model.graph, 1),
                                  {.sequences = 1, .seq = options.seq}, ScheduleMode::kEvaluate);
  const int64_t arena_bytes = model.layout.bytes() + schedule.arena_bytes;
  const auto refuse_unless_fits = [&](const MemoryBudget& memory, int64_t seen) {
    if (arena_bytes <= memory.arena() && seen <= budget) return;
    const int64_t needed =
        std::max(WholeMiB(memory.process + memory.reserve + arena_bytes), WholeMiB(seen));
    throw UserError(
        ExitCode::kBudget,
        "does not fit: --memory {} is short by {}; the smallest that fits is {}MiB "
        "(libraries and tables {}, weights {}, activations at --seq {} {}); raise --memory",
        FormatBytes(budget), FormatBytes(needed - budget), needed >> 20,
        FormatBytes(memory.process + memory.reserve), FormatBytes(model.layout.bytes()),
        options.seq, FormatBytes(schedule.arena_bytes));
  };
  MemoryBudget memory = MeasureMemory(options.seq, budget);
  refuse_unless_fits(memory, 0);
  const Dataset data = OpenEvalData(options, model, budget);
  memory.Recount();
  refuse_unless_fits(memory, PeakResidentBytes());
  const Evaluation result = EvaluateWindows(model, data, schedule, memory.arena());
  const double loss = result.loss();
  const auto finite = [](double x) {
    return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json();
  };
  fmt::print("{}\n", nlohmann::json({{"loss", finite(loss)},
                                     {"perplexity", finite(std::exp(loss))},
                                     {"tokens", result.tokens}})
                         .dump());
  return ExitCode::kOk;
}

}  // namespace haversack
