// Regular expressions of tokenizer.json files. They are written for Oniguruma; here PCRE2 runs
// them, after a translation that keeps their meaning and refuses what it does not know.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace haversack {

// The PCRE2 spelling of an Oniguruma pattern. Throws UserError that begins with `where` (file and
// field) and names the construct for what differs between the two and has no translation.
std::string TranslatePattern(std::string_view pattern, const std::string& where);

class Regex {
 public:
  // Throws UserError that begins with `where`.
  Regex(std::string_view pattern, const std::string& where);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

 private:
  friend class RegexCursor;
  struct Code;
  std::unique_ptr<Code> code_;
  std::string where_;
};

// The matches of a regular expression in valid UTF-8, left to right, none overlapping. An empty
// match right behind another match is left out.
class RegexCursor {
 public:
  // Both must outlive the cursor. The text is at most 2^31 bytes.
  RegexCursor(const Regex& regex, std::string_view text);
  // False when there are no more. Throws UserError when the library gives up (a pattern that
  // backtracks without end): a match is never cut short.
  bool Next(size_t* start, size_t* end);

 private:
  const Regex& regex_;
  std::string_view text_;
  std::string with_stand_ins_;
  size_t next_ = 0;
  size_t last_end_ = std::string_view::npos;
};

}  // namespace haversack
