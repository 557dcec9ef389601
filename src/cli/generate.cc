#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "base/process_memory.h"
#include "base/threads.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "exec/arena.h"
#include "exec/generator.h"
#include "exec/sampler.h"
#include "io/model.h"
#include "io/model_dir.h"
#include "models/common.h"
#include "schedule/plan.h"
#include "schedule/schedule.h"
#include "tokenizer/tokenizer.h"

namespace haversack {
namespace {

struct GenerateOptions {
  std::string model;
  std::string prompt;
  int64_t max_new_tokens = 64;
  SamplingOptions sampling;
  int threads = 0;
};

void CheckSampling(const GenerateOptions& options) {
  const double temperature = options.sampling.temperature;
  if (!(temperature >= 0) || std::isinf(temperature)) {
    throw UserError(ExitCode::kUsage, "--temperature {}: use 0 (greedy) or a positive number",
                    temperature);
  }
  if (!(options.sampling.top_p >= 0 && options.sampling.top_p <= 1)) {
    throw UserError(ExitCode::kUsage, "--top-p {}: use a probability from 0 to 1",
                    options.sampling.top_p);
  }
}

// Tokens that end a text: generation_config.json's, else config.json's, else the tokenizer's end
// token. A list that is present but empty ends nothing.
std::set<int32_t> StopTokens(const Model& model, const Tokenizer& tokenizer) {
  ModelConfig found = model.config;
  bool given =
      model.config.json.contains("eos_token_id") && !model.config.json["eos_token_id"].is_null();
  const std::string path = model.dir + "/generation_config.json";
  if (std::filesystem::exists(path)) {
    const nlohmann::json json = ParseJson(ReadWholeFile(path), path);
    const JsonFields fields(json, path);
    if (fields.Has("eos_token_id")) {
      ParseSpecialTokens(fields, found);
      given = true;
    }
  }
  std::set<int32_t> stops(found.eos_ids.begin(), found.eos_ids.end());
  if (!given && tokenizer.eos_id()) stops.insert(*tokenizer.eos_id());
  for (const int32_t id : stops) {
    if (id < 0 || id >= model.config.vocab) {
      throw UserError(ExitCode::kUsage,
                      "{}: eos_token_id {} is outside the vocabulary of {} tokens", model.dir, id,
                      model.config.vocab);
    }
  }
  return stops;
}

std::vector<int32_t> EncodePrompt(const GenerateOptions& options, const Model& model,
                                  const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.Encode(options.prompt, /*add_special_tokens=*/true);
  if (ids.empty()) {
    const std::optional<int32_t> begin =
        tokenizer.bos_id() ? tokenizer.bos_id() : model.config.bos_id;
    if (!begin) {
      throw UserError(ExitCode::kUsage,
                      "--prompt is empty and this model has no token that begins a text");
    }
    ids.push_back(*begin);
  }
  for (const int32_t id : ids) {
    if (id >= model.config.vocab) {
      throw UserError(ExitCode::kUsage,
                      "--prompt: token '{}' has id {}, but the model's vocabulary ends at {}",
                      tokenizer.Token(id), id, model.config.vocab);
    }
  }
  return ids;
}

// Where a text has to end, prompt included, and the field that says so.
struct Limit {
  int64_t tokens;
  const char* field;
};

std::optional<Limit> LimitOf(const ModelConfig& config) {
  if (config.learned_positions) return Limit{config.max_positions, "n_positions"};
  if (config.sliding_window) return Limit{*config.sliding_window, "sliding_window"};
  return std::nullopt;
}

// Ids that may be sampled: rows that pad the embedding mean nothing and have no token.
std::vector<bool> UsableTokens(const Tokenizer& tokenizer, int64_t vocab) {
  std::vector<bool> usable(std::min(tokenizer.vocab_size(), vocab));
  for (size_t id = 0; id < usable.size(); ++id) {
    usable[id] = !tokenizer.Token(static_cast<int32_t>(id)).empty();
  }
  return usable;
}

// Refuses a text whose keys and values, with the weights, pass the memory that is free: the kernel
// would end the process somewhere in the middle.
void CheckMemory(const Model& model, int64_t prompt_tokens, int64_t new_tokens) {
  const ModelConfig& config = model.config;
  // Keys and values of each layer; cosines and sines.
  const int64_t token_bytes = static_cast<int64_t>(sizeof(float)) *
                              (2 * config.layers * config.kv_heads + 1) * config.head_dim;
  const Schedule schedule = Lower(model.graph, KeepPlan(model.graph, 1),
                                  {.sequences = 1, .seq = prompt_tokens}, ScheduleMode::kEvaluate);
  const int64_t fixed = model.layout.bytes() + schedule.arena_bytes + prompt_tokens * token_bytes;
  const int64_t free = AvailableBytes();
  if (fixed + new_tokens * token_bytes <= free) return;
  throw UserError(
      ExitCode::kBudget,
      "does not fit: weights and prompt take {}, each new token {}, and {} are free; {}",
      FormatBytes(fixed), FormatBytes(token_bytes), FormatBytes(free),
      fixed < free ? fmt::format("use --max-new-tokens {} or less", (free - fixed) / token_bytes)
                   : "use a smaller model or a shorter --prompt");
}

// Prints what follows `prompt`, at most `new_tokens` tokens.
void Continue(Generator& generator, const Tokenizer& tokenizer, const std::vector<bool>& usable,
              const std::set<int32_t>& stops, const SamplingOptions& sampling,
              std::vector<int32_t> prompt, int64_t new_tokens) {
  StreamDecoder decoder(tokenizer, /*skip_special_tokens=*/true);
  std::vector<int32_t> pending = std::move(prompt);
  std::vector<float> logits;
  for (int64_t i = 0; i < new_tokens; ++i) {
    const std::span<const float> all = generator.Feed(pending);
    logits.assign(all.begin(), all.begin() + static_cast<int64_t>(usable.size()));
    for (size_t id = 0; id < usable.size(); ++id) {
      if (!usable[id]) logits[id] = -std::numeric_limits<float>::infinity();
    }
    const int32_t next = SampleToken(logits, sampling, static_cast<uint64_t>(generator.length()));
    if (stops.contains(next)) break;
    fmt::print("{}", decoder.Push(next));
    std::fflush(stdout);
    pending = {next};
  }
  fmt::print("{}\n", decoder.Flush());
}

}  // namespace

ExitCode GenerateCommand(int argc, const char* const* argv) {
  GenerateOptions options;
  Flags flags("generate", "Continues a prompt; prints the new text only.");
  CLI::App& app = flags.app();
  app.add_option("--model", options.model, "Hugging Face model directory")
      ->required()
      ->type_name("DIR");
  app.add_option("--prompt", options.prompt, "text to continue")->required();
  app.add_option("--max-new-tokens", options.max_new_tokens)
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--temperature", options.sampling.temperature, "0: always the most probable token")
      ->capture_default_str();
  app.add_option("--top-p", options.sampling.top_p,
                 "sample among the tokens that hold this probability")
      ->capture_default_str();
  app.add_option("--seed", options.sampling.seed)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--threads", options.threads, "compute threads (default: all cores)")
      ->check(CLI::Range(0, 4096));
  if (!flags.Parse(argc, argv)) return ExitCode::kOk;
  CheckSampling(options);

  SetNumThreads(options.threads > 0 ? options.threads : AvailableCores());
  const Tokenizer tokenizer = Tokenizer::Load(options.model);
  // Rotary tables cover prompt and answer; their length is known once the prompt is encoded.
  const Model sized = OpenModel(options.model, {.positions = 1, .loss_chunk = 1}, false);
  const std::vector<int32_t> prompt = EncodePrompt(options, sized, tokenizer);
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const std::optional<Limit> limit = LimitOf(sized.config);
  if (limit && prompt_tokens > limit->tokens) {
    throw UserError(ExitCode::kUsage, "--prompt has {} tokens, this model's {} is {}",
                    prompt_tokens, limit->field, limit->tokens);
  }
  int64_t new_tokens = options.max_new_tokens;
  if (limit) new_tokens = std::min(new_tokens, limit->tokens - prompt_tokens);
  const int64_t capacity = prompt_tokens + new_tokens;
  CheckMemory(sized, prompt_tokens, new_tokens);
  const Model model = OpenModel(options.model, {.positions = capacity, .loss_chunk = 1}, true);
  for (const std::string& note : model.notes) fmt::print(stderr, "note: {}\n", note);
  if (new_tokens < options.max_new_tokens) {
    fmt::print(stderr, "note: the text ends at this model's {} of {}: at most {} new tokens\n",
               limit->field, limit->tokens, new_tokens);
  }
  const std::set<int32_t> stops = StopTokens(model, tokenizer);

  Arena arena(model.layout.bytes());
  ModelState state;
  state.weights = reinterpret_cast<float*>(arena.Take("weights", model.layout.bytes()));
  LoadWeights(model.graph, model.layout, *model.files, state.weights);
  Generator generator(model.graph, model.layout, state, capacity);
  Continue(generator, tokenizer, UsableTokens(tokenizer, model.config.vocab), stops,
           options.sampling, prompt, new_tokens);
  return ExitCode::kOk;
}

}  // namespace haversack
