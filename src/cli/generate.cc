#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/threads.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "exec/arena.h"
#include "exec/generator.h"
#include "exec/sampler.h"
#include "io/model.h"
#include "io/model_dir.h"
#include "models/common.h"
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

// Tokens that end a text: generation_config.json's, else config.json's, else the tokenizer's end token.
// A list that is present but empty ends nothing.
std::set<int32_t> StopTokens(const Model& model, const Tokenizer& tokenizer) {
  ModelConfig found = model.config;
  bool given = model.config.json.contains("eos_token_id") &&
               !model.config.json["eos_token_id"].is_null();
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
  if (model.config.learned_positions &&
      static_cast<int64_t>(ids.size()) > model.config.max_positions) {
    throw UserError(ExitCode::kUsage, "--prompt has {} tokens, this model's n_positions is {}",
                    ids.size(), model.config.max_positions);
  }
  return ids;
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
  app.add_option("--top-p", options.sampling.top_p, "sample among the tokens that hold this probability")
      ->capture_default_str();
  app.add_option("--seed", options.sampling.seed)->capture_default_str();
  app.add_option("--threads", options.threads, "compute threads (default: all cores)")
      ->check(CLI::Range(0, 4096));
  if (!flags.Parse(argc, argv)) return ExitCode::kOk;
  CheckSampling(options);

  SetNumThreads(options.threads > 0 ? options.threads : AvailableCores());
  const Tokenizer tokenizer = Tokenizer::Load(options.model);
  // Rotary tables cover prompt and answer; their length is known once the prompt is encoded.
  const Model sized = OpenModel(options.model, 1, 1, false);
  const std::vector<int32_t> prompt = EncodePrompt(options, sized, tokenizer);
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  int64_t capacity = prompt_tokens + options.max_new_tokens;
  if (sized.config.learned_positions) capacity = std::min(capacity, sized.config.max_positions);
  const Model model = OpenModel(options.model, capacity, 1, true);
  for (const std::string& note : model.notes) fmt::print(stderr, "note: {}\n", note);
  const std::set<int32_t> stops = StopTokens(model, tokenizer);

  Arena arena(model.layout.bytes());
  ModelState state;
  state.weights = reinterpret_cast<float*>(arena.Take("weights", model.layout.bytes()));
  LoadWeights(model.graph, model.layout, *model.files, state.weights);
  Generator generator(model.graph, model.layout, state, capacity);
  StreamDecoder decoder(tokenizer, /*skip_special_tokens=*/true);
  // Rows that pad the embedding mean nothing and are never sampled.
  const auto usable = static_cast<size_t>(std::min(tokenizer.vocab_size(), model.config.vocab));

  std::vector<int32_t> pending = prompt;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const std::span<const float> logits = generator.Feed(pending).first(usable);
    const int32_t next =
        SampleToken(logits, options.sampling, static_cast<uint64_t>(generator.length()));
    if (stops.contains(next)) break;
    fmt::print("{}", decoder.Push(next));
    std::fflush(stdout);
    if (generator.length() == capacity && i + 1 < options.max_new_tokens) {
      fmt::print(stderr, "\nnote: stopped at the model's n_positions of {}\n", capacity);
      break;
    }
    pending = {next};
  }
  fmt::print("{}\n", decoder.Flush());
  return ExitCode::kOk;
}

}  // namespace haversack
