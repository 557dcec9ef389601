#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace haversack {
namespace {

// The examples of Unicode 15, section 3.9, tables 3-8 to 3-11, and Python's answers.
TEST(ReplaceInvalid, PutsOneCharacterForEachMaximalSubpart) {
  EXPECT_EQ(ReplaceInvalid("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(ReplaceInvalid("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(ReplaceInvalid("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(ReplaceInvalid("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
}

TEST(ReplaceInvalid, LeavesEveryCodePointAlone) {
  std::string text;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c < 0xD800 || c >= 0xE000) AppendChar(c, &text);
  }
  EXPECT_EQ(FindInvalid(text), text.size());
  EXPECT_EQ(ReplaceInvalid(text), text);
}

TEST(IncompleteSuffix, CountsTheBytesThatMayStillBecomeACharacter) {
  EXPECT_EQ(IncompleteSuffix(""), 0u);
  EXPECT_EQ(IncompleteSuffix("a"), 0u);
  EXPECT_EQ(IncompleteSuffix("é"), 0u);
  EXPECT_EQ(IncompleteSuffix("a\xC3"), 1u);
  EXPECT_EQ(IncompleteSuffix("\xE2\x82"), 2u);
  EXPECT_EQ(IncompleteSuffix("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(IncompleteSuffix("\xED\xA0"), 0u);  // a surrogate, never a character
  EXPECT_EQ(IncompleteSuffix("\x80\x80"), 0u);
  EXPECT_EQ(IncompleteSuffix("\xFF"), 0u);
}

}  // namespace
}  // namespace haversack
