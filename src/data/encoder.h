// What the data pipeline needs of a tokenizer, as plain functions: tests put their own in their
// place.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace haversack {

class Tokenizer;

struct Encoder {
  // All functions may be called from several threads at once.
  // Text to ids; control tokens written in the text become the control tokens.
  std::function<std::vector<int32_t>(std::string_view)> encode;
  // The same, but control tokens written in the text stay text.
  std::function<std::vector<int32_t>(std::string_view)> encode_ordinary;
  // The largest cut at which encoding the two pieces separately equals encoding the whole; 0 if
  // none.
  std::function<size_t(std::string_view)> safe_cut;
  std::function<std::optional<int32_t>(std::string_view)> token_id;
  // For messages.
  std::function<std::string(int32_t)> token_text;
  int32_t vocab_size = 0;
};

// `tokenizer` must outlive the encoder.
Encoder EncoderOf(const Tokenizer& tokenizer);

}  // namespace haversack
