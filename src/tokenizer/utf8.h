// UTF-8 as the tokenizer needs it: everything after ReplaceInvalid is valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace haversack {

// Bytes of the character that starts with `lead` in valid UTF-8.
inline size_t CharBytes(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// The code point at `at` of valid UTF-8; sets `*bytes` to its length.
inline char32_t CharAt(std::string_view text, size_t at, size_t* bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + at;
  if (p[0] < 0x80) {
    *bytes = 1;
    return p[0];
  }
  if (p[0] < 0xE0) {
    *bytes = 2;
    return char32_t{p[0] & 0x1Fu} << 6 | (p[1] & 0x3Fu);
  }
  if (p[0] < 0xF0) {
    *bytes = 3;
    return char32_t{p[0] & 0x0Fu} << 12 | char32_t{p[1] & 0x3Fu} << 6 | (p[2] & 0x3Fu);
  }
  *bytes = 4;
  return char32_t{p[0] & 0x07u} << 18 | char32_t{p[1] & 0x3Fu} << 12 | char32_t{p[2] & 0x3Fu} << 6 |
         (p[3] & 0x3Fu);
}

// Where the character that ends just before `at` (> 0) begins.
inline size_t PreviousChar(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

void AppendChar(char32_t code_point, std::string* out);

// The first byte at or after `from` that is not part of a valid character; text.size() if none.
// Overlong forms, surrogates and code points above U+10FFFF are invalid.
size_t FindInvalid(std::string_view text, size_t from = 0);

// `text` with each maximal ill-formed subsequence replaced by U+FFFD: Unicode 15 section 3.9, as
// Python's bytes.decode("utf-8", "replace") and Rust's from_utf8_lossy do.
std::string ReplaceInvalid(std::string_view text);

// Bytes at the end of `text` that are the beginning of a character still incomplete (0 to 3).
size_t IncompleteSuffix(std::string_view text);

}  // namespace haversack
