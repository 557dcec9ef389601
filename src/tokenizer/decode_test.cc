#include <gtest/gtest.h>

#include "base/error.h"
#include "tokenizer/test_util.h"

namespace haversack {
namespace {

using nlohmann::json;

json Llama2Decoder() {
  return json::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
}

// "<unk>" 0, "a" 1, "▁" 2, "▁a" 3, the bytes of "é" 4 and 5, "<s>" 6
json Llama2() {
  json file = CharacterLevel({"<unk>", "a", "▁", "▁a", "<0xC3>", "<0xA9>"});
  file["added_tokens"].push_back(AddedTokenJson(6, "<s>", {"special"}));
  file["decoder"] = Llama2Decoder();
  return file;
}

std::vector<std::string> Pushes(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder stream(tokenizer, /*skip_special_tokens=*/true);
  std::vector<std::string> texts;
  for (const int32_t id : ids) texts.push_back(stream.Push(id));
  texts.push_back(stream.Flush());
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Decode, ByteLevelTokensBecomeTheirBytes) {
  const Tokenizer tokenizer = Make(B0());
  EXPECT_EQ(tokenizer.Decode(Ids({97, 0xE2, 0x82, 0xAC, 256}), false), "a€<|endoftext|>");
  EXPECT_EQ(tokenizer.Decode(Ids({97, 0xE2, 0x82, 0xAC, 256}), true), "a€");
  EXPECT_EQ(tokenizer.Decode(Ids({0xE2, 0x82, 97, 0xFF}), true), "\uFFFDa\uFFFD");
}

TEST(Decode, IdsWithoutATokenAreLeftOut) {
  const Tokenizer tokenizer = Make(B0());
  EXPECT_EQ(tokenizer.Decode(Ids({97, 300, -1, 98}), false), "ab");
}

TEST(Decode, ByteTokensOfLlama2AreTextOrReplacementCharacters) {
  const Tokenizer tokenizer = Make(Llama2());
  EXPECT_EQ(tokenizer.Decode(Ids({6, 3, 4, 5, 3}), true), "aé a");
  EXPECT_EQ(tokenizer.Decode(Ids({2, 3, 4, 5, 4}), true), " a\uFFFD\uFFFD\uFFFD");
}

TEST(StreamDecoder, HoldsBackUnfinishedCharacters) {
  const Tokenizer tokenizer = Make(B0());
  EXPECT_EQ(Pushes(tokenizer, {97, 0xE2, 0x82, 0xAC, 256, 0xF0, 0x9F}),
            Texts({"a", "", "", "€", "", "", "", "\uFFFD"}));
  EXPECT_EQ(Pushes(tokenizer, {0xE2, 97, 0xFF}), Texts({"", "\uFFFDa", "\uFFFD", ""}));
}

TEST(StreamDecoder, DropsOnlyTheVeryFirstBlank) {
  const Tokenizer tokenizer = Make(Llama2());
  EXPECT_EQ(Pushes(tokenizer, {6, 2, 2, 3, 4, 5, 3}),
            Texts({"", "", " ", " a", "", "", "é a", ""}));
}

TEST(StreamDecoder, PiecesMakeUpTheWholeText) {
  for (const json& file : {B0(), Llama2()}) {
    const Tokenizer tokenizer = Make(file);
    for (uint32_t seed = 0; seed < 400; ++seed) {
      Ids ids;
      for (uint32_t i = 0, state = seed * 2654435761u; i < 12; ++i) {
        state = state * 1664525u + 1013904223u;
        ids.push_back(static_cast<int32_t>((state >> 16) % tokenizer.vocab_size()));
      }
      std::string text;
      for (const std::string& piece : Pushes(tokenizer, ids)) text += piece;
      ASSERT_EQ(text, tokenizer.Decode(ids, /*skip_special_tokens=*/true));
    }
  }
}

class SafeCuts : public ::testing::Test {
 protected:
  static void ExpectCuttable(const Tokenizer& tokenizer, const std::string& text, size_t cut) {
    EXPECT_EQ(tokenizer.SafeCut(text), cut) << text;
    Ids ids = tokenizer.Encode(text.substr(0, cut));
    const Ids rest = tokenizer.Encode(text.substr(cut));
    ids.insert(ids.end(), rest.begin(), rest.end());
    EXPECT_EQ(ids, tokenizer.Encode(text)) << text;
  }
};

TEST_F(SafeCuts, LieBetweenAWordAndABlankOrALineEnd) {
  const Tokenizer tokenizer = Make(B0());
  ExpectCuttable(tokenizer, "one two thr", 7);
  ExpectCuttable(tokenizer, "one two   ", 7);
  ExpectCuttable(tokenizer, "one.\ntwo", 5);
  ExpectCuttable(tokenizer, "one. \n two", 4);
  ExpectCuttable(tokenizer, "one", 0);
  ExpectCuttable(tokenizer, "", 0);
  ExpectCuttable(tokenizer, "漢字漢字", 0);
}

TEST_F(SafeCuts, StayOutOfAddedTokensAndOfWhatTheyTake) {
  json file = B0();
  file["added_tokens"].push_back(AddedTokenJson(259, "see also"));
  file["added_tokens"].push_back(AddedTokenJson(260, "<r>", {"rstrip"}));
  const Tokenizer tokenizer = Make(file);
  ExpectCuttable(tokenizer, "x see also", 1);
  ExpectCuttable(tokenizer, "x see al", 1);  // may become the token
  ExpectCuttable(tokenizer, "x see b", 5);
  ExpectCuttable(tokenizer, "x <r> y", 1);
}

TEST_F(SafeCuts, DoNotExistWhereNothingIsKnownOfTheSteps) {
  json file = B0();
  file["normalizer"] = {{"type", "Prepend"}, {"prepend", "▁"}};
  EXPECT_EQ(Make(file).SafeCut("one two"), 0u);
  file = B0();
  file["pre_tokenizer"]["use_regex"] = false;
  EXPECT_EQ(Make(file).SafeCut("one two"), 0u);
}

}  // namespace
}  // namespace haversack
