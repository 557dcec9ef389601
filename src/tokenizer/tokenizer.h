// Text to token ids and back, as a Hugging Face `tokenizer.json` says; equal to the `tokenizers`
// package.
//
//   const Tokenizer tokenizer = Tokenizer::Load("models/SmolLM2-135M");
//   std::vector<int32_t> ids = tokenizer.Encode("In the beginning");
//   std::string text = tokenizer.Decode(ids, /*skip_special_tokens=*/true);
//
// Models: BPE, byte level or with byte fallback. What a file asks for and this code does not know
// is refused by name with a UserError (kUsage), never approximated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace haversack {

class Tokenizer {
 public:
  // Reads `tokenizer.json`, and where they exist `tokenizer_config.json` (end, begin and padding
  // token, chat template) and `chat_template.jinja`. Throws UserError that names file and field.
  static Tokenizer Load(const std::filesystem::path& model_dir);
  // The same from the text of a `tokenizer.json`; `where` stands for the file in errors.
  static Tokenizer FromJson(std::string_view json, const std::string& where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Thread-safe. Bytes that are no UTF-8 count as U+FFFD, one for each maximal ill-formed
  // subsequence. `add_special_tokens` applies the file's post-processor. Throws UserError for a
  // character without a token where the model has no unknown token.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens = false) const;
  // Special tokens in `text` stay plain text: for content that a turn of a chat quotes.
  std::vector<int32_t> EncodeOrdinary(std::string_view text) const;

  // Ids without a token are left out.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // The highest id + 1, added tokens included.
  int64_t vocab_size() const;
  std::optional<int32_t> TokenId(std::string_view token) const;
  // The token as the file spells it; empty when no token has this id.
  std::string Token(int32_t id) const;
  bool IsSpecial(int32_t id) const;

  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> pad_id() const;
  const std::optional<std::string>& chat_template() const;

  // A position at which a text that begins with `text` can be cut: whatever follows,
  // Encode(all) == Encode(all[:cut]) ++ Encode(all[cut:]). The last one inside `text` that is
  // provably right for this file's steps, or 0 when there is none. Lets a corpus larger than memory
  // be encoded in pieces.
  size_t SafeCut(std::string_view text) const;

  struct State;  // tokenizer_state.h, for this folder

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// Decodes token by token. The pieces, with Flush at the end, make up Decode of all ids.
class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  // The text that is complete by now: the bytes of an unfinished character wait.
  std::string Push(int32_t id);
  // What waits, unfinished characters as U+FFFD. A new text can begin after it.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  bool continues_ = false;            // text before `waiting_` has come out
  std::string bytes_;                 // of unfinished characters
  std::vector<std::string> waiting_;  // tokens
};

}  // namespace haversack
