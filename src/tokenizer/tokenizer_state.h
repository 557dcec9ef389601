// What a Tokenizer holds; private to this folder.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace haversack {

struct Tokenizer::State {
  struct Scratch {
    PreTokenizer::Scratch words;
    std::string normalized;
  };

  // `document` is a parsed tokenizer.json, `where` its file.
  State(const Fields& document, const std::string& where);

  // Reads what stands beside tokenizer.json.
  void ReadConfig(const std::filesystem::path& model_dir);

  // Takes a free scratch, or makes one: as many exist as calls have run at once.
  std::unique_ptr<Scratch> TakeScratch() const;
  void GiveBack(std::unique_ptr<Scratch> scratch) const;

  // The ids of `text`; with `ordinary`, special tokens in it stay plain text.
  std::vector<int32_t> Encode(std::string_view text, bool ordinary) const;
  // The ids of a part of it that holds no token to be found before normalization.
  void EncodePiece(std::string_view text, bool at_start, bool ordinary, Scratch* scratch,
                   std::vector<int32_t>* ids) const;

  // nullopt when no token has this id, or when it is special and to be skipped.
  std::optional<std::string> TokenForDecoding(int32_t id, bool skip_special_tokens) const;
  std::optional<int32_t> Id(std::string_view token) const;

  std::string file;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;
  std::optional<int32_t> eos_id;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
  std::optional<std::string> chat_template;

 private:
  std::optional<int32_t> ReadTokenId(const Fields& config, std::string_view key) const;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace haversack
