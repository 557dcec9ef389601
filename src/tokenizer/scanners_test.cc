// The hand-written scanners find what PCRE2 finds with the patterns they stand for.
#include "tokenizer/scanners.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tokenizer/pattern.h"
#include "tokenizer/utf8.h"

namespace haversack {
namespace {

using Spans = std::vector<std::pair<size_t, size_t>>;

Spans Matches(const Pattern& pattern, std::string_view text) {
  Spans spans;
  pattern.ForEachMatch(text, [&](size_t start, size_t end) { spans.emplace_back(start, end); });
  return spans;
}

void ExpectSame(std::string_view regex, const std::vector<std::string>& texts) {
  const Pattern scanner = Pattern::FromRegex(std::string(regex), "test");
  ASSERT_NE(scanner.kind(), Pattern::Kind::kRegex);
  const Pattern pcre2 = Pattern::FromRegex("(?:" + std::string(regex) + ")", "test");
  ASSERT_EQ(pcre2.kind(), Pattern::Kind::kRegex);
  for (const std::string& text : texts) {
    ASSERT_EQ(Matches(scanner, text), Matches(pcre2, text)) << text;
  }
}

// All short texts over one character of each kind that the patterns tell apart.
std::vector<std::string> AllShortTexts() {
  const std::vector<std::string> kinds = {"a", "1", " ", "\n", "\r", "\t",
                                          ".", "'", "s", "L",  "é",  "\u2003"};
  std::vector<std::string> texts = {""};
  for (size_t begin = 0, length = 1; length <= 4; ++length) {
    const size_t end = texts.size();
    for (size_t i = begin; i < end; ++i) {
      for (const std::string& kind : kinds) texts.push_back(texts[i] + kind);
    }
    begin = end;
  }
  return texts;
}

std::vector<std::string> RandomTexts() {
  std::mt19937 random(7);
  std::vector<std::string> texts;
  const std::string common = "  \n\r\t.'abSTREVMLD129";
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (int length = static_cast<int>(random() % 60); length > 0; --length) {
      if (random() % 3 != 0) {
        text += common[random() % common.size()];
        continue;
      }
      char32_t c = random() % (random() % 2 == 0 ? 0x3100 : 0x110000);
      if (c >= 0xD800 && c < 0xE000) c = 0x17F;
      AppendChar(c, &text);
    }
    texts.push_back(text);
  }
  return texts;
}

TEST(Scanners, FindWhatPcre2FindsInAllShortTexts) {
  for (const std::string_view regex : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    ExpectSame(regex, AllShortTexts());
  }
}

TEST(Scanners, FindWhatPcre2FindsInRandomTexts) {
  for (const std::string_view regex : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    ExpectSame(regex, RandomTexts());
  }
}

// Characters assigned after the Unicode version of an older PCRE2 included.
TEST(Scanners, FindWhatPcre2FindsAtEveryCodePoint) {
  std::vector<std::string> texts;
  for (char32_t first = 0; first < 0x110000; first += 0x100) {
    if (first >= 0xD800 && first < 0xE000) continue;
    std::string text;
    for (char32_t c = first; c < first + 0x100; ++c) {
      AppendChar(c, &text);
      text += c % 2 == 0 ? "a" : " ";
    }
    texts.push_back(text);
  }
  for (const std::string_view regex : {kGpt2Pattern, kLlama3Pattern}) ExpectSame(regex, texts);
}

}  // namespace
}  // namespace haversack
