#include "tokenizer/utf8.h"

#include <algorithm>
#include <cstring>

namespace haversack {

namespace {

// One step over possibly invalid text: `bytes` is the length of the valid character, or of the
// maximal ill-formed subsequence; `truncated` that the text ended inside what could still become a
// character.
struct Step {
  size_t bytes = 1;
  bool valid = false;
  bool truncated = false;
};

Step StepAt(std::string_view text, size_t at) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + at;
  const size_t left = text.size() - at;
  const unsigned char lead = p[0];
  if (lead < 0x80) return {.bytes = 1, .valid = true};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const size_t length = CharBytes(lead);
  // The second byte's range rules out overlong forms, surrogates and values above U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == left) return {.bytes = i, .truncated = true};
    const bool good = i == 1 ? p[1] >= low && p[1] <= high : (p[i] & 0xC0) == 0x80;
    if (!good) return {.bytes = i};
  }
  return {.bytes = length, .valid = true};
}

}  // namespace

void AppendChar(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

size_t FindInvalid(std::string_view text, size_t from) {
  size_t at = from;
  while (at < text.size()) {
    // Eight ASCII bytes at a time.
    uint64_t word;
    while (at + 8 <= text.size()) {
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080u) != 0) break;
      at += 8;
    }
    if (at == text.size()) break;
    const Step step = StepAt(text, at);
    if (!step.valid) return at;
    at += step.bytes;
  }
  return text.size();
}

std::string ReplaceInvalid(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  size_t at = 0;
  while (at < text.size()) {
    const size_t bad = FindInvalid(text, at);
    out.append(text, at, bad - at);
    if (bad == text.size()) break;
    out += "\uFFFD";
    at = bad + StepAt(text, bad).bytes;
  }
  return out;
}

size_t IncompleteSuffix(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    if ((c & 0xC0) == 0x80) continue;
    const Step step = StepAt(text, text.size() - back);
    return step.truncated && step.bytes == back ? back : 0;
  }
  return 0;
}

}  // namespace haversack
