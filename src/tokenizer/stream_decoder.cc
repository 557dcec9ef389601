#include "tokenizer/tokenizer_state.h"
#include "tokenizer/utf8.h"

namespace haversack {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

std::string StreamDecoder::Push(int32_t id) {
  const Tokenizer::State& state = *tokenizer_.state_;
  std::optional<std::string> token = state.TokenForDecoding(id, skip_special_tokens_);
  if (!token) return "";
  switch (state.decoder.streaming()) {
    case Decoder::Streaming::kBytes: {
      AppendTokenBytes(*token, &bytes_);
      const size_t complete = bytes_.size() - IncompleteSuffix(bytes_);
      std::string text = ReplaceInvalid(std::string_view(bytes_).substr(0, complete));
      bytes_.erase(0, complete);
      return text;
    }
    case Decoder::Streaming::kTokens: {
      const bool more = state.decoder.IsByteToken(*token);
      waiting_.push_back(std::move(*token));
      // A run of byte tokens is one text or none.
      if (more) return "";
      std::string text = state.decoder.Decode(waiting_, continues_);
      // Blanks at the very beginning may all be dropped: decode them again with what follows.
      if (text.empty() && !continues_) return "";
      waiting_.clear();
      continues_ = true;
      return text;
    }
    case Decoder::Streaming::kWhole:
      waiting_.push_back(std::move(*token));
      return "";
  }
  return "";
}

std::string StreamDecoder::Flush() {
  std::string text = ReplaceInvalid(bytes_);
  if (!waiting_.empty()) text += tokenizer_.state_->decoder.Decode(std::move(waiting_), continues_);
  bytes_.clear();
  waiting_.clear();
  continues_ = false;
  return text;
}

}  // namespace haversack
