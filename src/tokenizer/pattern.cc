#include "tokenizer/pattern.h"

#include "base/error.h"

namespace haversack {

Pattern Pattern::Literal(std::string text) {
  Pattern pattern(Kind::kLiteral);
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::FromRegex(const std::string& regex, const std::string& where) {
  if (regex == kGpt2Pattern) return Gpt2();
  if (regex == kLlama3Pattern || regex == kQwen2Pattern) {
    Pattern pattern(Kind::kLlama3);
    pattern.max_digits_ = regex == kLlama3Pattern ? 3 : 1;
    return pattern;
  }
  Pattern pattern(Kind::kRegex);
  pattern.regex_ = std::make_shared<const Regex>(regex, where);
  return pattern;
}

Pattern Pattern::FromJson(const Fields& fields) {
  const Fields pattern = fields.Object("pattern");
  if (const auto regex = pattern.FindString("Regex")) {
    return FromRegex(*regex, pattern.Path("Regex"));
  }
  std::string literal = pattern.String("String");
  if (literal.empty()) pattern.Fail("String", "must not be empty");
  return Literal(std::move(literal));
}

SplitBehavior ParseSplitBehavior(const Fields& fields, std::string_view key) {
  const std::string name = fields.String(key);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  fields.Fail(key,
              fmt::format("'{}' is unknown; it is one of Removed, Isolated, MergedWithPrevious, "
                          "MergedWithNext, Contiguous",
                          name));
}

}  // namespace haversack
