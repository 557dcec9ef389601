// Character classes, equal to those of the `tokenizers` package (see tools/make_unicode_tables.py).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace haversack {

enum class CharClass : uint8_t { kOther, kSpace, kLetter, kNumber };

// The class under the regular expressions \s, \p{L}, \p{N}; kOther for the rest.
CharClass ClassOfSlow(char32_t c);

extern const std::array<CharClass, 128> kAsciiClass;

inline CharClass ClassOf(char32_t c) { return c < 128 ? kAsciiClass[c] : ClassOfSlow(c); }

// White_Space.
inline bool IsSpace(char32_t c) { return ClassOf(c) == CharClass::kSpace; }
// What the Digits pre-tokenizer splits off: the categories Nd, Nl and No.
bool IsNumeric(char32_t c);
// \w for the single_word flag: letters, marks, decimal numbers, connectors, joiners.
bool IsWordChar(char32_t c);

// A copy of `text` with equal offsets for a regular expression library that may know Unicode 14
// only and counts U+180E among the spaces: characters it would class differently have stand-ins of
// their category. False, leaving `out` alone, when there are none.
bool WithStandIns(std::string_view text, std::string* out);
// Assigned, or moved to another category, after Unicode 14.
bool IsNewCharacter(char32_t c);

}  // namespace haversack
