#include "tokenizer/scanners.h"

#include <limits>

namespace haversack {

namespace {

struct Char {
  char32_t code_point;
  CharClass kind;
  size_t end;
};

inline Char Read(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {.code_point = lead, .kind = kAsciiClass[lead], .end = at + 1};
  size_t bytes;
  const char32_t c = CharAt(text, at, &bytes);
  return {.code_point = c, .kind = ClassOfSlow(c), .end = at + bytes};
}

// The end of the run of at most `limit` characters of class `kind` that begins at `at`.
inline size_t RunEnd(std::string_view text, size_t at, CharClass kind,
                     int limit = std::numeric_limits<int>::max()) {
  for (; limit > 0 && at < text.size(); --limit) {
    const Char next = Read(text, at);
    if (next.kind != kind) break;
    at = next.end;
  }
  return at;
}

// The end of an English contraction at `at`, which holds an apostrophe; `at` when there is none.
// Folding case brings in the long s.
size_t ContractionEnd(std::string_view text, size_t at, bool any_case) {
  const std::string_view rest = text.substr(at + 1, 2);
  if (rest.empty()) return at;
  const auto lower = [&](char c) {
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = lower(rest[0]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if (any_case && rest == "\u017F") return at + 3;
  if (rest.size() < 2) return at;
  const char second = lower(rest[1]);
  const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                   (first == 'l' && second == 'l');
  return two ? at + 3 : at;
}

// \s+(?!\S)|\s+ from a space at `at`: the whole run at the end of the text, and otherwise all of it
// but its last character, if that leaves any.
size_t SpacesEnd(std::string_view text, size_t at) {
  const size_t end = RunEnd(text, at, CharClass::kSpace);
  if (end == text.size()) return end;
  const size_t last = PreviousChar(text, end);
  return last > at ? last : end;
}

}  // namespace

size_t Gpt2MatchEnd(std::string_view text, size_t at) {
  const Char first = Read(text, at);
  if (first.code_point == '\'') {
    const size_t end = ContractionEnd(text, at, /*any_case=*/false);
    if (end > at) return end;
  }
  if (first.kind != CharClass::kSpace) return RunEnd(text, first.end, first.kind);
  if (first.code_point == ' ' && first.end < text.size()) {
    const Char second = Read(text, first.end);
    if (second.kind != CharClass::kSpace) return RunEnd(text, second.end, second.kind);
  }
  return SpacesEnd(text, at);
}

size_t Llama3MatchEnd(std::string_view text, size_t at, int max_digits) {
  const Char first = Read(text, at);
  if (first.code_point == '\'') {
    const size_t end = ContractionEnd(text, at, /*any_case=*/true);
    if (end > at) return end;
  }
  if (first.kind == CharClass::kLetter) return RunEnd(text, first.end, CharClass::kLetter);
  if (first.kind == CharClass::kNumber) {
    return RunEnd(text, first.end, CharClass::kNumber, max_digits - 1);
  }
  const bool line_end = first.code_point == '\r' || first.code_point == '\n';
  // Letters, with one other character before them.
  if (!line_end && first.end < text.size()) {
    const Char second = Read(text, first.end);
    if (second.kind == CharClass::kLetter) return RunEnd(text, second.end, CharClass::kLetter);
  }
  // Punctuation, with a blank before it and the line ends after it.
  const size_t marks = first.code_point == ' ' ? first.end : at;
  size_t end = RunEnd(text, marks, CharClass::kOther);
  if (end > marks) {
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
    return end;
  }
  // Spaces up to the last line end of the run.
  size_t last_line_end = 0;
  for (size_t next = at; next < text.size();) {
    const Char space = Read(text, next);
    if (space.kind != CharClass::kSpace) break;
    next = space.end;
    if (space.code_point == '\r' || space.code_point == '\n') last_line_end = next;
  }
  return last_line_end > 0 ? last_line_end : SpacesEnd(text, at);
}

}  // namespace haversack
