#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/regex.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

constexpr std::array<std::string_view, 37> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};

constexpr std::array<std::string_view, 16> kScripts = {
    "Han",      "Hiragana", "Katakana", "Hangul", "Bopomofo",   "Latin",    "Greek", "Cyrillic",
    "Armenian", "Hebrew",   "Arabic",   "Thai",   "Devanagari", "Georgian", "Tamil", "Bengali"};

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string Run() {
    while (at_ < pattern_.size()) Item();
    return out_;
  }

 private:
  [[noreturn]] void Refuse(std::string_view construct) const {
    throw UserError(ExitCode::kUsage,
                    "{}: the pattern '{}' uses '{}', which is not supported; rewrite the pattern "
                    "without it",
                    where_, OneLine(pattern_), OneLine(construct));
  }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void Copy(size_t bytes) {
    out_.append(pattern_, at_, bytes);
    at_ += bytes;
  }

  void Item() {
    switch (Peek()) {
      case '\\':
        return Escape();
      case '[':
        return Class();
      case '(':
        return Open();
      case '{':
        return Interval();
      case '^':
      case '$':
        // Oniguruma's match at every line.
        return Refuse(pattern_.substr(at_, 1));
      default:
        return Copy(CharBytes(static_cast<unsigned char>(Peek())));
    }
  }

  void Open() {
    static constexpr std::array<std::string_view, 8> kKnown = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    if (Peek(1) != '?') return Copy(1);
    for (const std::string_view known : kKnown) {
      if (pattern_.substr(at_, known.size()) == known) return Copy(known.size());
    }
    Refuse(pattern_.substr(at_, 4));
  }

  // {n}, {n,}, {n,m}, {,m}; anything else in braces is literal text to one library and not to the
  // other.
  void Interval() {
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) Refuse("{");
    const std::string_view inside = pattern_.substr(at_ + 1, close - at_ - 1);
    const bool known = !inside.empty() && inside != "," &&
                       std::ranges::all_of(inside, [](char c) { return isdigit(c) || c == ','; }) &&
                       std::ranges::count(inside, ',') <= 1;
    if (!known) Refuse(pattern_.substr(at_, close - at_ + 1));
    out_ += inside[0] == ',' ? "{0" : "{";
    out_ += inside;
    out_ += '}';
    at_ = close + 1;
    // Possessive to PCRE2, a repeated group to Oniguruma.
    if (Peek() == '+') Refuse("}+");
  }

  void Class() {
    Copy(1);
    if (Peek() == '^') Copy(1);
    if (Peek() == ']') Refuse("[]");
    while (Peek() != ']') {
      if (at_ >= pattern_.size()) Refuse("[");
      if (Peek() == '[') Refuse("a class inside a class");
      if (Peek() == '&' && Peek(1) == '&') Refuse("&&");
      if (Peek() == '\\') {
        Escape();
      } else {
        Copy(CharBytes(static_cast<unsigned char>(Peek())));
      }
    }
    Copy(1);
  }

  void Escape() {
    const char c = Peek(1);
    switch (c) {
      case 's':
      case 'S':
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return Copy(2);
      case 'v':  // one character to Oniguruma, a class to PCRE2
        out_ += "\\x0B";
        at_ += 2;
        return;
      case 'x':
      case 'u':
        return CodePoint();
      case 'p':
      case 'P':
        return Property();
      default:
        break;
    }
    if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) || (c & 0x80) != 0) {
      Refuse(pattern_.substr(at_, 2));
    }
    Copy(2);
  }

  // \xHH, \x{H...}, \uHHHH
  void CodePoint() {
    const bool braces = Peek(1) == 'x' && Peek(2) == '{';
    const size_t begin = at_ + (braces ? 3 : 2);
    size_t end = begin;
    const size_t limit = braces ? 6 : Peek(1) == 'u' ? 4 : 2;
    while (end < pattern_.size() && end - begin < limit &&
           std::isxdigit(static_cast<unsigned char>(pattern_[end]))) {
      ++end;
    }
    const bool complete = braces ? end > begin && end < pattern_.size() && pattern_[end] == '}'
                                 : end - begin == limit;
    // Two hexadecimal digits above 7F are a raw byte to Oniguruma.
    if (!complete || (limit == 2 && pattern_[begin] > '7')) Refuse(pattern_.substr(at_, 4));
    out_ += fmt::format("\\x{{{}}}", pattern_.substr(begin, end - begin));
    at_ = end + (braces ? 1 : 0);
  }

  void Property() {
    const size_t close = pattern_.find('}', at_);
    if (Peek(2) != '{' || close == std::string_view::npos) Refuse(pattern_.substr(at_, 3));
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    bool negated = Peek(1) == 'P';
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    const bool script = std::ranges::find(kScripts, name) != kScripts.end();
    if (!script && std::ranges::find(kCategories, name) == kCategories.end()) {
      Refuse(pattern_.substr(at_, close + 1 - at_));
    }
    // PCRE2's plain script names include the script extensions.
    out_ += fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', script ? "sc:" : "", name);
    at_ = close + 1;
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string TranslatePattern(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).Run();
}

}  // namespace haversack
