// What Split, Replace and the class-based pre-tokenizers look for, and how a text is cut at the
// matches.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/json_fields.h"
#include "tokenizer/regex.h"
#include "tokenizer/scanners.h"

namespace haversack {

class Pattern {
 public:
  enum class Kind { kGpt2, kLlama3, kNumeric, kSpace, kLiteral, kRegex };

  static Pattern Gpt2() { return Pattern(Kind::kGpt2); }
  static Pattern Numeric() { return Pattern(Kind::kNumeric); }
  static Pattern Space() { return Pattern(Kind::kSpace); }
  static Pattern Literal(std::string text);
  // Takes the hand-written scanner where there is one. `where` begins an error.
  static Pattern FromRegex(const std::string& regex, const std::string& where);
  // {"String": ...} or {"Regex": ...} in the field "pattern" of `fields`.
  static Pattern FromJson(const Fields& fields);

  Kind kind() const { return kind_; }
  const std::string& literal() const { return literal_; }

  // Calls match(start, end) for each match, left to right.
  template <typename Match>
  void ForEachMatch(std::string_view text, Match match) const {
    switch (kind_) {
      case Kind::kGpt2:
        for (size_t at = 0, end; at < text.size(); at = end) {
          match(at, end = Gpt2MatchEnd(text, at));
        }
        return;
      case Kind::kLlama3:
        for (size_t at = 0, end; at < text.size(); at = end) {
          match(at, end = Llama3MatchEnd(text, at, max_digits_));
        }
        return;
      case Kind::kNumeric:
      case Kind::kSpace: {
        size_t bytes;
        for (size_t at = 0; at < text.size(); at += bytes) {
          const char32_t c = CharAt(text, at, &bytes);
          if (kind_ == Kind::kNumeric ? IsNumeric(c) : IsSpace(c)) match(at, at + bytes);
        }
        return;
      }
      case Kind::kLiteral:
        for (size_t at = text.find(literal_); at != text.npos;
             at = text.find(literal_, at + literal_.size())) {
          match(at, at + literal_.size());
        }
        return;
      case Kind::kRegex: {
        RegexCursor cursor(*regex_, text);
        size_t start;
        size_t end;
        while (cursor.Next(&start, &end)) match(start, end);
        return;
      }
    }
  }

 private:
  explicit Pattern(Kind kind) : kind_(kind) {}

  Kind kind_;
  int max_digits_ = 0;
  std::string literal_;  // not empty
  std::shared_ptr<const Regex> regex_;
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Throws UserError naming the field for an unknown name.
SplitBehavior ParseSplitBehavior(const Fields& fields, std::string_view key);

// Cuts `text` at the matches of `pattern`, or with `invert` at what lies between them, and calls
// piece(begin, end) for each part that is not empty, left to right.
template <typename Piece>
void ForEachPiece(const Pattern& pattern, SplitBehavior behavior, bool invert,
                  std::string_view text, Piece piece) {
  // `pending` is the part that the next span may still join.
  size_t pending_begin = 0;
  size_t pending_end = 0;
  bool pending = false;
  bool previous = false;  // whether the span before was a delimiter
  const auto flush = [&] {
    if (pending && pending_begin < pending_end) piece(pending_begin, pending_end);
    pending = false;
  };
  const auto span = [&](size_t begin, size_t end, bool is_match) {
    const bool delimiter = is_match != invert;
    bool joins = false;
    switch (behavior) {
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kRemoved:
        if (delimiter) {
          flush();
          return;
        }
        break;
      case SplitBehavior::kContiguous:
        joins = pending && delimiter == previous;
        break;
      case SplitBehavior::kMergedWithPrevious:
        joins = pending && delimiter && !previous;
        break;
      case SplitBehavior::kMergedWithNext:
        joins = pending && previous && !delimiter;
        break;
    }
    if (!joins) {
      flush();
      pending_begin = begin;
    }
    pending = true;
    pending_end = end;
    previous = delimiter;
  };
  size_t last = 0;
  pattern.ForEachMatch(text, [&](size_t start, size_t end) {
    if (last != start) span(last, start, false);
    span(start, end, true);
    last = end;
  });
  if (last != text.size()) span(last, text.size(), false);
  flush();
}

}  // namespace haversack
