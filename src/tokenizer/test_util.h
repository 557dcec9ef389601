// Small tokenizers for tests, as tokenizer.json documents.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace haversack {

using Ids = std::vector<int32_t>;

inline nlohmann::json AddedTokenJson(int32_t id, const std::string& content,
                                     std::initializer_list<const char*> flags = {}) {
  nlohmann::json token = {{"id", id},        {"content", content}, {"single_word", false},
                          {"lstrip", false}, {"rstrip", false},    {"normalized", false},
                          {"special", false}};
  for (const char* flag : flags) token[flag] = true;
  return token;
}

// A byte-level tokenizer in which the id of byte b is b; 256 <|endoftext|>, 257 <|im_start|> and
// 258
// <|im_end|> are special. Tokens of a test start at 259.
inline nlohmann::json B0() {
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", true}};
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    AppendChar(ByteToChar(static_cast<uint8_t>(byte)), &token);
    vocab[token] = byte;
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {AddedTokenJson(256, "<|endoftext|>", {"special"}),
            AddedTokenJson(257, "<|im_start|>", {"special"}),
            AddedTokenJson(258, "<|im_end|>", {"special"})}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", nlohmann::json::array()}}}};
}

// A tokenizer over characters: `vocab` in the order of the ids, the first token unknown.
inline nlohmann::json CharacterLevel(const std::vector<std::string>& vocab) {
  nlohmann::json json = B0();
  json["added_tokens"] = nlohmann::json::array();
  json["pre_tokenizer"] = nullptr;
  json["decoder"] = nullptr;
  json["model"]["vocab"] = nlohmann::json::object();
  for (size_t id = 0; id < vocab.size(); ++id) json["model"]["vocab"][vocab[id]] = id;
  json["model"]["unk_token"] = vocab[0];
  return json;
}

inline Tokenizer Make(const nlohmann::json& json) {
  return Tokenizer::FromJson(json.dump(), "tokenizer.json");
}

inline std::string Repeat(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

}  // namespace haversack
