#include "tokenizer/unicode.h"

#include <algorithm>
#include <span>

#include "tokenizer/unicode_tables.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

using unicode_tables::CodePointRange;
using unicode_tables::StandIn;

constexpr char32_t kLimit = 0x110000;

std::array<CharClass, 128> MakeAsciiClass() {
  std::array<CharClass, 128> table{};
  for (int c = 0; c < 128; ++c) {
    if (c == ' ' || (c >= '\t' && c <= '\r')) table[c] = CharClass::kSpace;
    if (c >= '0' && c <= '9') table[c] = CharClass::kNumber;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) table[c] = CharClass::kLetter;
  }
  return table;
}

// One byte a code point: 1.1 MiB, made at the first use.
struct ClassTable {
  std::vector<CharClass> classes = std::vector<CharClass>(kLimit, CharClass::kOther);

  ClassTable() {
    using unicode_tables::kLetters;
    using unicode_tables::kNumbers;
    Fill({kLetters, unicode_tables::kLettersCount}, CharClass::kLetter);
    Fill({kNumbers, unicode_tables::kNumbersCount}, CharClass::kNumber);
    static constexpr CodePointRange kSpaces[] = {
        {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
    Fill(kSpaces, CharClass::kSpace);
  }
  void Fill(std::span<const CodePointRange> ranges, CharClass value) {
    for (const CodePointRange& range : ranges) {
      std::fill(classes.begin() + range.first, classes.begin() + range.last + 1, value);
    }
  }
};

// The range that holds `c`, or nullptr.
template <typename Range>
const Range* FindRange(std::span<const Range> ranges, char32_t c) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), c,
                       [](char32_t value, const Range& range) { return value < range.first; });
  if (after == ranges.begin()) return nullptr;
  const Range& range = *(after - 1);
  return c <= range.last ? &range : nullptr;
}

const StandIn* FindStandIn(char32_t c) {
  static constexpr StandIn kMongolianVowelSeparator = {0x180E, 0x180E, 0x200B};
  if (c == 0x180E) return &kMongolianVowelSeparator;
  return FindRange<StandIn>({unicode_tables::kStandIns, unicode_tables::kStandInsCount}, c);
}

}  // namespace

const std::array<CharClass, 128> kAsciiClass = MakeAsciiClass();

CharClass ClassOfSlow(char32_t c) {
  static const ClassTable table;
  return table.classes[c];
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return FindRange<CodePointRange>({unicode_tables::kNumeric, unicode_tables::kNumericCount}, c);
}

bool IsWordChar(char32_t c) {
  return FindRange<CodePointRange>({unicode_tables::kWord, unicode_tables::kWordCount}, c);
}

bool IsNewCharacter(char32_t c) { return c != 0x180E && FindStandIn(c) != nullptr; }

bool WithStandIns(std::string_view text, std::string* out) {
  bool found = false;
  size_t bytes = 0;
  for (size_t at = 0; at < text.size(); at += bytes) {
    // All of them lie above U+07FF.
    if (static_cast<unsigned char>(text[at]) < 0xE0) {
      bytes = CharBytes(static_cast<unsigned char>(text[at]));
      continue;
    }
    const StandIn* stand_in = FindStandIn(CharAt(text, at, &bytes));
    if (stand_in == nullptr) continue;
    if (!found) out->assign(text);
    found = true;
    std::string replacement;
    AppendChar(stand_in->stand_in, &replacement);
    out->replace(at, bytes, replacement);
  }
  return found;
}

}  // namespace haversack
