// Hand-written scanners for the two families of pre-tokenizer pattern that nearly every byte-level
// tokenizer has. Each returns the end of the match that begins at `at` (< text.size()); both
// patterns match at every position. A test proves them equal to PCRE2 on the patterns they stand
// for.
#pragma once

#include <cstddef>
#include <string_view>

#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace haversack {

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Llama 3 (three digits at most) and Qwen2 (single digits).
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

size_t Gpt2MatchEnd(std::string_view text, size_t at);
// `max_digits` is 3 for Llama 3 and 1 for Qwen2.
size_t Llama3MatchEnd(std::string_view text, size_t at, int max_digits);

}  // namespace haversack
