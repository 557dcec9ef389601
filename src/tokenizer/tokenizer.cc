#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "tokenizer/tokenizer_state.h"
#include "tokenizer/utf8.h"

namespace haversack {

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer::State::Scratch> Tokenizer::State::TakeScratch() const {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(free_.back());
      free_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::State::GiveBack(std::unique_ptr<Scratch> scratch) const {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

std::vector<int32_t> Tokenizer::State::Encode(std::string_view text, bool ordinary) const {
  std::string valid;
  if (FindInvalid(text) != text.size()) {
    valid = ReplaceInvalid(text);
    text = valid;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  std::unique_ptr<Scratch> scratch = TakeScratch();
  added.Split(text, /*normalized=*/false, ordinary,
              [&](std::string_view piece, int32_t id, size_t begin) {
                if (id >= 0) {
                  ids.push_back(id);
                } else {
                  EncodePiece(piece, begin == 0, ordinary, scratch.get(), &ids);
                }
              });
  GiveBack(std::move(scratch));
  return ids;
}

void Tokenizer::State::EncodePiece(std::string_view text, bool at_start, bool ordinary,
                                   Scratch* scratch, std::vector<int32_t>* ids) const {
  const std::string_view normal = normalizer.Apply(text, &scratch->normalized);
  added.Split(normal, /*normalized=*/true, ordinary,
              [&](std::string_view piece, int32_t id, size_t begin) {
                if (id >= 0) {
                  ids->push_back(id);
                } else {
                  pre_tokenizer.Encode(piece, at_start && begin == 0, bpe, &scratch->words, ids);
                }
              });
}

std::optional<int32_t> Tokenizer::State::Id(std::string_view token) const {
  const std::optional<int32_t> id = added.Id(token);
  return id ? id : bpe.Id(token);
}

std::optional<std::string> Tokenizer::State::TokenForDecoding(int32_t id,
                                                              bool skip_special_tokens) const {
  const AddedToken* token = added.ById(id);
  const std::string* text = token != nullptr ? &added.DecodedForm(*token) : bpe.Token(id);
  if (text == nullptr) return std::nullopt;
  if (skip_special_tokens && added.IsSpecialContent(*text)) return std::nullopt;
  return *text;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int32_t> ids = state_->Encode(text, /*ordinary=*/false);
  return add_special_tokens ? state_->post_processor.Apply(std::move(ids)) : ids;
}

std::vector<int32_t> Tokenizer::EncodeOrdinary(std::string_view text) const {
  return state_->Encode(text, /*ordinary=*/true);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (auto token = state_->TokenForDecoding(id, skip_special_tokens)) {
      tokens.push_back(std::move(*token));
    }
  }
  return state_->decoder.Decode(std::move(tokens));
}

int64_t Tokenizer::vocab_size() const {
  int64_t size = state_->bpe.size();
  for (const AddedToken& token : state_->added.tokens()) {
    size = std::max(size, int64_t{token.id} + 1);
  }
  return size;
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  return state_->Id(token);
}

std::string Tokenizer::Token(int32_t id) const {
  if (const AddedToken* token = state_->added.ById(id)) return token->content;
  const std::string* token = state_->bpe.Token(id);
  return token == nullptr ? std::string() : *token;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const AddedToken* token = state_->added.ById(id);
  return token != nullptr && token->special;
}

std::optional<int32_t> Tokenizer::eos_id() const { return state_->eos_id; }
std::optional<int32_t> Tokenizer::bos_id() const { return state_->bos_id; }
std::optional<int32_t> Tokenizer::pad_id() const { return state_->pad_id; }
const std::optional<std::string>& Tokenizer::chat_template() const { return state_->chat_template; }

}  // namespace haversack
