// One very long run of one kind of character neither overruns a stack nor takes quadratic time.
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>

#include "base/error.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pattern.h"
#include "tokenizer/scanners.h"
#include "tokenizer/test_util.h"

namespace haversack {
namespace {

using nlohmann::json;

std::vector<std::string> Runs() {
  return {Repeat("Z", 200'000),        Repeat(" ", 200'000) + "x",      Repeat(" ", 200'000),
          Repeat("\n", 100'000) + "x", Repeat("漢", 100'000),           Repeat("us", 60'000),
          Repeat("7", 200'000),        "e" + Repeat("\u0301", 100'000), Repeat(" \n", 100'000)};
}

json WithPattern(const std::string& pattern) {
  json file = B0();
  json bytes = file["pre_tokenizer"];
  bytes["use_regex"] = false;
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  return file;
}

// The same pattern in a spelling that has no hand-written scanner.
std::string ForPcre2(std::string_view pattern) { return "(?:" + std::string(pattern) + ")"; }

void ExpectBytes(const Tokenizer& tokenizer) {
  for (const std::string& text : Runs()) {
    const Ids ids = tokenizer.Encode(text);
    ASSERT_EQ(ids.size(), text.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(ids[i], static_cast<unsigned char>(text[i])) << i;
    }
  }
}

// Runs `body` on a thread with a stack of 256 KiB.
void OnSmallStack(const std::function<void()>& body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_t thread;
  const auto start = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  auto* argument = const_cast<std::function<void()>*>(&body);
  ASSERT_EQ(pthread_create(&thread, &attributes, start, argument), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(LongRuns, ComeOutAsTheirBytesUnderEveryPattern) {
  OnSmallStack([] {
    ExpectBytes(Make(B0()));
    ExpectBytes(Make(WithPattern(std::string(kQwen2Pattern))));
    ExpectBytes(Make(WithPattern(ForPcre2(kGpt2Pattern))));
    ExpectBytes(Make(WithPattern(ForPcre2(kQwen2Pattern))));
    ExpectBytes(Make(WithPattern(ForPcre2(kLlama3Pattern))));
  });
}

TEST(LongRuns, MergeFromTheLeft) {
  json file = B0();
  file["model"]["vocab"]["ZZ"] = 259;
  file["model"]["vocab"]["ZZZZ"] = 260;
  file["model"]["merges"] = {"Z Z", "ZZ ZZ"};
  Ids right(50'000, 260);
  right.push_back(259);
  right.push_back(90);
  OnSmallStack([&] { EXPECT_EQ(Make(file).Encode(Repeat("Z", 200'003)), right); });
}

TEST(LongRuns, OfMarksInEveryOrderAreNormalized) {
  const std::string marks = "e" + Repeat("\u0316\u0301", 100'000);
  const std::string sorted = "e" + Repeat("\u0316", 100'000) + Repeat("\u0301", 100'000);
  EXPECT_EQ(NormalizeUnicode(marks, {.compose = false, .compatibility = false}), sorted);
}

// Each group remembers where it could have ended: hundreds of megabytes of backtracking points.
TEST(LongRuns, APatternThatNeedsMuchMemoryStillMatchesAll) {
  const std::string text = Repeat("ab", 500'000) + "x";
  EXPECT_EQ(Make(WithPattern("(?:a|b|(?=y))+x")).Encode(text).size(), text.size());
}

}  // namespace
}  // namespace haversack
