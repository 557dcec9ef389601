// The `pre_tokenizer` of tokenizer.json: cuts a normalized text into words. Split, Digits,
// ByteLevel, Metaspace, WhitespaceSplit, and Sequence of those.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pattern.h"

namespace haversack {

enum class PrependScheme { kFirst, kNever, kAlways };

// Metaspace's fields, in the new and the old spelling; the decoder has the same.
struct MetaspaceConfig {
  std::string replacement;  // one character
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;

  static MetaspaceConfig FromJson(const Fields& fields);
};

class PreTokenizer {
 public:
  struct Split {
    Pattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct ByteLevel {
    bool add_prefix_space;
    bool use_regex;
  };
  struct Metaspace {
    MetaspaceConfig config;
    Pattern replacement;
  };
  using Stage = std::variant<Split, ByteLevel, Metaspace>;

  // Working memory of one call: a text for each stage that changes it.
  struct Scratch {
    BpeScratch bpe;
    std::vector<std::string> texts;
  };

  // No stage: the whole text is one word.
  PreTokenizer() = default;
  // `parent` holds the field "pre_tokenizer", which may be missing or null. Throws UserError that
  // names what is not supported, Metaspace's scheme "first" after `normalizer` steps that move the
  // beginning of the text included.
  static PreTokenizer FromJson(const Fields& parent, const Normalizer& normalizer);

  // Appends the ids of `text`, not empty. `at_start`: it begins where the whole input does.
  void Encode(std::string_view text, bool at_start, const Bpe& bpe, Scratch* scratch,
              std::vector<int32_t>* out) const;

  const std::vector<Stage>& stages() const { return stages_; }

 private:
  struct Call;

  void Read(const Fields& fields, bool keeps_start);
  void Run(size_t stage, std::string_view text, bool at_start, const Call& call) const;
  void Apply(const Split& split, size_t stage, std::string_view text, bool at_start,
             const Call& call) const;
  void Apply(const ByteLevel& split, size_t stage, std::string_view text, bool at_start,
             const Call& call) const;
  void Apply(const Metaspace& split, size_t stage, std::string_view text, bool at_start,
             const Call& call) const;

  std::vector<Stage> stages_;
};

}  // namespace haversack
