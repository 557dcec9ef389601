// The `decoder` of tokenizer.json: turns tokens back into text. ByteLevel, Metaspace, Replace,
// ByteFallback, Fuse, Strip, and Sequence of those; without one, tokens are joined by blanks.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/pattern.h"
#include "tokenizer/pre_tokenizer.h"

namespace haversack {

class Decoder {
 public:
  struct ByteLevel {};
  struct Metaspace {
    std::string replacement;
    bool drops_first;  // the first token's markers stand for no blank
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct ByteFallback {};
  struct Fuse {};
  struct Strip {
    char32_t content;
    size_t start;  // at most so many at the beginning of a token
    size_t stop;   // and at its end
  };
  using Step = std::variant<ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip>;

  // How a text can be decoded token by token.
  enum class Streaming {
    kBytes,   // the decoder is ByteLevel alone
    kTokens,  // no step looks past a run of byte tokens
    kWhole,   // only the whole text can be decoded
  };

  // No decoder.
  Decoder() = default;
  // `parent` holds the field "decoder", which may be missing or null. Throws UserError that names
  // what is not supported.
  static Decoder FromJson(const Fields& parent);

  // The text of `tokens`. `continues`: text came out of tokens before these, so nothing is done
  // that is for the beginning only.
  std::string Decode(std::vector<std::string> tokens, bool continues = false) const;

  Streaming streaming() const;
  // Whether `token` may change the meaning of the ones before and behind it: a byte token such as
  // <0xE2>, where the decoder knows them.
  bool IsByteToken(std::string_view token) const;

 private:
  void Read(const Fields& fields);

  bool present_ = false;
  std::vector<Step> steps_;
};

// Appends the bytes that a token stands for in the byte-level alphabet; the token itself if a
// character is outside the alphabet.
void AppendTokenBytes(std::string_view token, std::string* out);

}  // namespace haversack
