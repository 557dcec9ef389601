#include <algorithm>

#include "tokenizer/tokenizer_state.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

// The cuts that are right for a file's steps. Each rule looks at the characters around the cut
// only, so it holds whatever comes before and after them.
struct CutRules {
  bool before_blank = false;     // x| : x is no white space, then a blank
  bool before_line_end = false;  // x|\n : x is no white space (a letter, if `letters_only`)
  bool letters_only = false;
  bool after_line_end = false;  // x\n|y : x and y are no white space
};

// Steps that treat each character by itself, up to marks that join what stands before them, may
// come before and after a cut alike. Prepend and Strip act on the ends of a text, which a cut makes
// more of.
bool CutsCommute(const Normalizer::Step& step) {
  if (const auto* replace = std::get_if<Normalizer::Replace>(&step)) {
    // Blanks must stay what the rules look for, or become what Metaspace would make of them.
    const std::string& literal = replace->pattern.literal();
    return literal.size() == 1 && literal != "\n" && literal != "\r" && literal != "\t" &&
           (literal != " " || replace->content == "\u2581");
  }
  return std::holds_alternative<Normalizer::UnicodeForm>(step);
}

bool ReplacesBlanks(const Normalizer::Step& step) {
  const auto* replace = std::get_if<Normalizer::Replace>(&step);
  return replace != nullptr && replace->pattern.literal() == " ";
}

// No match of GPT-2's pattern holds a character that is no white space and white space behind it,
// so one ends between the two; what stands before does not look beyond it. The same holds for a
// line end that has no white space before or behind it: it is a match by itself.
constexpr CutRules kGpt2Rules = {
    .before_blank = true, .before_line_end = true, .after_line_end = true};
// In Llama 3's pattern line ends can follow punctuation in a match, but not letters, and no match
// goes on from a line end to something that is no white space.
constexpr CutRules kLlama3Rules = {
    .before_blank = true, .before_line_end = true, .letters_only = true, .after_line_end = true};
constexpr CutRules kBlankRule = {.before_blank = true};

// Splits at single characters of a class cut on both sides of the cut as they would without it.
bool SplitsByClass(const PreTokenizer::Split& split) {
  return split.pattern.kind() == Pattern::Kind::kNumeric &&
         split.behavior != SplitBehavior::kRemoved;
}

CutRules RulesOf(const PreTokenizer::Split& split) {
  // These patterns match everywhere: removing what lies between is the same as isolating.
  const bool isolates = (split.behavior == SplitBehavior::kIsolated && !split.invert) ||
                        (split.behavior == SplitBehavior::kRemoved && split.invert);
  if (split.pattern.kind() == Pattern::Kind::kGpt2 && isolates) return kGpt2Rules;
  if (split.pattern.kind() == Pattern::Kind::kLlama3 && isolates) return kLlama3Rules;
  if (split.pattern.kind() == Pattern::Kind::kSpace) return kBlankRule;
  return {};
}

CutRules RulesOf(const PreTokenizer::ByteLevel& byte_level) {
  if (!byte_level.use_regex) return {};
  // A blank at the cut takes the place of the blank that would be put before a text.
  return byte_level.add_prefix_space ? kBlankRule : kGpt2Rules;
}

CutRules RulesOf(const Tokenizer::State& state) {
  bool blanks_replaced = false;
  for (const Normalizer::Step& step : state.normalizer.steps()) {
    if (!CutsCommute(step)) return {};
    blanks_replaced = blanks_replaced || ReplacesBlanks(step);
  }
  // Tokens that are looked for in the normal form cannot be seen here.
  if (state.added.any_normalized() && !state.normalizer.steps().empty()) return {};
  const bool metaspace_only = state.bpe.splits_before_metaspace();
  for (const PreTokenizer::Stage& stage : state.pre_tokenizer.stages()) {
    if (const auto* metaspace = std::get_if<PreTokenizer::Metaspace>(&stage)) {
      // The cut falls before a marker, where Metaspace puts none of its own and a word begins.
      const bool splits =
          metaspace->config.split || (metaspace->config.replacement == "\u2581" && metaspace_only &&
                                      &stage == &state.pre_tokenizer.stages().back());
      return splits ? kBlankRule : CutRules{};
    }
    if (blanks_replaced) return {};
    const auto* split = std::get_if<PreTokenizer::Split>(&stage);
    if (split != nullptr && SplitsByClass(*split)) continue;
    return split != nullptr ? RulesOf(*split) : RulesOf(std::get<PreTokenizer::ByteLevel>(stage));
  }
  // No step made words: the model itself must keep to them.
  const bool by_model = blanks_replaced && metaspace_only && state.pre_tokenizer.stages().empty();
  return by_model ? kBlankRule : CutRules{};
}

// The class of the character that ends just before `at`; white space when there is none.
CharClass ClassBefore(std::string_view text, size_t at) {
  if (at == 0) return CharClass::kSpace;
  const size_t begin = PreviousChar(text, at);
  if (FindInvalid(text.substr(begin, at - begin)) != at - begin) return CharClass::kOther;
  size_t bytes;
  return ClassOf(CharAt(text, begin, &bytes));
}

bool IsCut(const CutRules& rules, bool any_lstrip, std::string_view text, size_t at) {
  const char next = text[at];
  const CharClass before = ClassBefore(text, at);
  if (before != CharClass::kSpace) {
    if (next == ' ') return rules.before_blank;
    return next == '\n' && rules.before_line_end &&
           (!rules.letters_only || before == CharClass::kLetter);
  }
  // A token that takes the white space to its left would take the line end, too.
  if (!rules.after_line_end || any_lstrip || text[at - 1] != '\n') return false;
  const bool next_plain =
      (next & 0x80) == 0 && ClassOf(static_cast<char32_t>(next)) != CharClass::kSpace;
  return next_plain && ClassBefore(text, at - 1) != CharClass::kSpace;
}

}  // namespace

size_t Tokenizer::SafeCut(std::string_view text) const {
  const CutRules rules = RulesOf(*state_);
  if (!rules.before_blank) return 0;
  for (size_t at = text.size(); at-- > 1;) {
    if ((text[at] & 0x80) != 0 || !IsCut(rules, state_->added.any_lstrip(), text, at)) continue;
    if (!state_->added.MayCross(text, at)) return at;
  }
  return 0;
}

}  // namespace haversack
