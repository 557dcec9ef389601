// The generated tables behind tokenizer/unicode.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace haversack::unicode_tables {

struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

// Code points assigned (or moved to another category) after Unicode 14, and a code point of that
// category and of equal length in UTF-8 which Unicode 14 knows.
struct StandIn {
  uint32_t first;
  uint32_t last;
  uint32_t stand_in;
};

extern const CodePointRange kLetters[];
extern const size_t kLettersCount;
extern const CodePointRange kNumbers[];
extern const size_t kNumbersCount;
extern const CodePointRange kNumeric[];
extern const size_t kNumericCount;
extern const CodePointRange kWord[];
extern const size_t kWordCount;
extern const StandIn kStandIns[];
extern const size_t kStandInsCount;

}  // namespace haversack::unicode_tables
