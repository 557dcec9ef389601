// Reading tokenizer.json and tokenizer_config.json.
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tokenizer/tokenizer_state.h"

namespace haversack {

namespace {

using nlohmann::json;

std::vector<std::pair<std::string, std::string>> ReadMerges(const Fields& model) {
  const json& list = model.Array("merges");
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const json& merge = list[i];
    const auto fail = [&] {
      model.Fail(
          fmt::format("merges[{}]", i),
          fmt::format("must be two tokens, \"a b\" or [\"a\", \"b\"], got {}", merge.dump()));
    };
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const size_t blank = text.find(' ');
      if (blank == text.npos || text.find(' ', blank + 1) != text.npos) fail();
      merges.emplace_back(text.substr(0, blank), text.substr(blank + 1));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      fail();
    }
  }
  return merges;
}

void RefuseUnlessEmpty(const Fields& model, std::string_view key) {
  const auto text = model.FindString(key);
  if (text && !text->empty()) {
    model.Fail(key, fmt::format("'{}' is not supported; only null is", OneLine(*text)));
  }
}

BpeConfig ReadBpe(const Fields& document) {
  const Fields model = document.Object("model");
  // The oldest files name no type.
  const std::string type = model.FindString("type").value_or("BPE");
  if (type != "BPE") {
    model.Fail("type", fmt::format("the model '{}' is not supported; supported is BPE", type));
  }
  if (const json* dropout = model.Find("dropout")) {
    if (!dropout->is_number() || dropout->get<double>() != 0) {
      model.Fail("dropout", fmt::format("{} is not supported; set it to null", dropout->dump()));
    }
  }
  RefuseUnlessEmpty(model, "continuing_subword_prefix");
  RefuseUnlessEmpty(model, "end_of_word_suffix");
  BpeConfig config;
  config.unk_token = model.FindString("unk_token");
  config.fuse_unk = model.FindBool("fuse_unk").value_or(false);
  config.byte_fallback = model.FindBool("byte_fallback").value_or(false);
  config.ignore_merges = model.FindBool("ignore_merges").value_or(false);
  const Fields vocab = model.Object("vocab");
  for (const auto& [token, id] : vocab.value().items()) {
    config.vocab.emplace_back(token, vocab.Integer(token));
  }
  config.merges = ReadMerges(model);
  return config;
}

std::vector<AddedToken> ReadAddedTokens(const Fields& document, const Bpe& bpe) {
  std::vector<AddedToken> tokens;
  if (document.Find("added_tokens") == nullptr) return tokens;
  for (const Fields& fields : document.Objects("added_tokens")) {
    AddedToken token = {.id = fields.Integer("id"),
                        .content = fields.String("content"),
                        .special = fields.Bool("special"),
                        .single_word = fields.Bool("single_word"),
                        .lstrip = fields.Bool("lstrip"),
                        .rstrip = fields.Bool("rstrip"),
                        .normalized = fields.Bool("normalized")};
    const std::optional<int32_t> known = bpe.Id(token.content);
    if (known && *known != token.id) {
      fields.Fail("id", fmt::format("{} for '{}', which model.vocab gives id {}; make them equal",
                                    token.id, OneLine(token.content), *known));
    }
    const std::string* other = bpe.Token(token.id);
    if (other != nullptr && !known) {
      fields.Fail("id", fmt::format("{} for '{}' is the id of '{}' in model.vocab; choose another",
                                    token.id, OneLine(token.content), OneLine(*other)));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void RefuseIfPresent(const Fields& document, std::string_view key) {
  if (document.Find(key) != nullptr) document.Fail(key, "is not supported; set it to null");
}

const Fields& Checked(const Fields& document) {
  if (const auto version = document.FindString("version"); version && version != "1.0") {
    document.Fail("version", fmt::format("'{}' is not supported; supported is 1.0", *version));
  }
  RefuseIfPresent(document, "truncation");
  RefuseIfPresent(document, "padding");
  return document;
}

}  // namespace

Tokenizer::State::State(const Fields& document, const std::string& where)
    : file(where),
      normalizer(Normalizer::FromJson(Checked(document))),
      pre_tokenizer(PreTokenizer::FromJson(document, normalizer)),
      bpe(ReadBpe(document), where),
      added(ReadAddedTokens(document, bpe), normalizer, where),
      post_processor(PostProcessor::FromJson(document)),
      decoder(Decoder::FromJson(document)) {}

Tokenizer Tokenizer::FromJson(std::string_view text, const std::string& where) {
  const json document = ParseJson(text, where);
  return Tokenizer(std::make_unique<State>(Fields(document, where + ": "), where));
}

Tokenizer Tokenizer::Load(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "tokenizer.json";
  if (!std::filesystem::exists(path)) {
    throw UserError(ExitCode::kUsage,
                    "{}: there is no such file; a model directory needs its tokenizer",
                    path.string());
  }
  Tokenizer tokenizer = FromJson(ReadWholeFile(path.string()), path.string());
  tokenizer.state_->ReadConfig(model_dir);
  return tokenizer;
}

void Tokenizer::State::ReadConfig(const std::filesystem::path& model_dir) {
  const std::filesystem::path jinja = model_dir / "chat_template.jinja";
  if (std::filesystem::exists(jinja)) chat_template = ReadWholeFile(jinja.string());
  const std::filesystem::path path = model_dir / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return;
  const json document = ParseJson(ReadWholeFile(path.string()), path.string());
  const Fields config(document, path.string() + ": ");
  eos_id = ReadTokenId(config, "eos_token");
  bos_id = ReadTokenId(config, "bos_token");
  pad_id = ReadTokenId(config, "pad_token");
  const json* chat = config.Find("chat_template");
  if (chat_template || chat == nullptr) return;
  if (chat->is_string()) {
    chat_template = chat->get<std::string>();
    return;
  }
  // Several templates by name.
  for (const Fields& named : config.Objects("chat_template")) {
    if (named.String("name") == "default") chat_template = named.String("template");
  }
}

// A token given as text or as {"content": ...}.
std::optional<int32_t> Tokenizer::State::ReadTokenId(const Fields& config,
                                                     std::string_view key) const {
  const json* value = config.Find(key);
  if (value == nullptr) return std::nullopt;
  const std::string token =
      value->is_object() ? config.Object(key).String("content") : config.String(key);
  const std::optional<int32_t> id = Id(token);
  if (!id) {
    config.Fail(key, fmt::format("'{}' is not a token of {}; add it there or set it to null",
                                 OneLine(token), file));
  }
  return id;
}

}  // namespace haversack
