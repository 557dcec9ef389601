// The `normalizer` of tokenizer.json: Prepend, Replace, NFC, NFD, NFKC, NFKD, Strip, and Sequence
// of those.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/pattern.h"

namespace haversack {

class Normalizer {
 public:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct UnicodeForm {
    bool compose;
    bool compatibility;
  };
  struct Strip {
    bool left;
    bool right;
  };
  using Step = std::variant<Prepend, Replace, UnicodeForm, Strip>;

  // No step: the identity.
  Normalizer() = default;
  // `parent` holds the field "normalizer", which may be missing or null. Throws UserError that
  // names what is not supported.
  static Normalizer FromJson(const Fields& parent);

  // The normal form of `text` (valid UTF-8): `text` itself when nothing changes, else a view of
  // `*storage`.
  std::string_view Apply(std::string_view text, std::string* storage) const;

  const std::vector<Step>& steps() const { return steps_; }

 private:
  void Read(const Fields& fields);

  std::vector<Step> steps_;
};

// A Unicode normalization form of `text`, in time that is linear up to sorting the marks of one
// character. The forms are those of the `tokenizers` package, which knows the characters of Unicode
// 9 only: later ones stay as they are.
std::string NormalizeUnicode(std::string_view text, Normalizer::UnicodeForm form);

}  // namespace haversack
