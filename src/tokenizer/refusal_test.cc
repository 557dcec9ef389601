// What is not known is refused by name; the message holds the file and the field.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tokenizer/regex.h"
#include "tokenizer/test_util.h"

namespace haversack {
namespace {

using nlohmann::json;

struct Case {
  const char* pointer;  // of the field to set in B0
  const char* value;
  std::vector<std::string> named;
};

void ExpectRefused(const Case& test) {
  json file = B0();
  file[json::json_pointer(test.pointer)] = json::parse(test.value);
  try {
    Make(file);
    ADD_FAILURE() << "accepted " << test.pointer << " = " << test.value;
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("tokenizer.json: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& name : test.named) {
      EXPECT_NE(message.find(name), std::string::npos) << message << " lacks " << name;
    }
  }
}

TEST(Refusal, NamesFieldAndValue) {
  const std::vector<Case> cases = {
      {"/model/type", R"("WordPiece")", {"model.type", "WordPiece"}},
      {"/model/dropout", "0.1", {"model.dropout", "0.1"}},
      {"/model/continuing_subword_prefix", R"("##")", {"model.continuing_subword_prefix", "##"}},
      {"/model/end_of_word_suffix", R"("</w>")", {"model.end_of_word_suffix", "</w>"}},
      {"/model/unk_token", R"("<unk>")", {"model.unk_token", "<unk>"}},
      {"/model/fuse_unk", "1", {"model.fuse_unk"}},
      {"/model/vocab/a", "98", {"model.vocab", "98"}},
      {"/model/vocab/a", "-1", {"model.vocab.a", "-1"}},
      {"/model/vocab/a", R"("x")", {"model.vocab.a"}},
      {"/model/merges", R"(["a b"])", {"model.merges[0]", "'ab'"}},
      {"/model/merges", R"(["a  b"])", {"model.merges[0]"}},
      {"/model/merges", R"([["a"]])", {"model.merges[0]"}},
      {"/model", "null", {"model", "missing"}},
      {"/normalizer", R"({"type": "BertNormalizer"})", {"normalizer.type", "BertNormalizer"}},
      {"/normalizer",
       R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})",
       {"normalizer.normalizers[1].type", "Nmt"}},
      {"/pre_tokenizer/type", R"("Whitespace")", {"pre_tokenizer.type", "Whitespace"}},
      {"/pre_tokenizer/add_prefix_space", "null", {"pre_tokenizer.add_prefix_space", "missing"}},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "\\bx"}, "behavior": "Isolated", "invert": false})",
       {"pre_tokenizer.pattern.Regex", "\\b"}},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"String": " "}, "behavior": "Other", "invert": false})",
       {"pre_tokenizer.behavior", "Other"}},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "last"})",
       {"pre_tokenizer.prepend_scheme", "last"}},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "add_prefix_space": false})",
       {"pre_tokenizer.add_prefix_space"}},
      {"/post_processor",
       R"({"type": "BertProcessing"})",
       {"post_processor.type", "BertProcessing"}},
      {"/decoder", R"({"type": "WordPiece"})", {"decoder.type", "WordPiece"}},
      {"/truncation", R"({"max_length": 8})", {"truncation"}},
      {"/padding", R"({"strategy": "BatchLongest"})", {"padding"}},
      {"/version", R"("2.0")", {"version", "2.0"}},
      {"/added_tokens/0/id", "-1", {"added_tokens[0].id"}},
      {"/added_tokens/0/id", "97", {"added_tokens[0].id", "97"}},
      {"/added_tokens/1/id", "256", {"added_tokens[1]", "256"}},
      {"/added_tokens/0/content", R"("a")", {"added_tokens[0].id", "'a'"}},
      {"/added_tokens/0/lstrip", R"("no")", {"added_tokens[0].lstrip"}},
  };
  for (const Case& test : cases) ExpectRefused(test);
}

TEST(Refusal, OfTextThatIsNoJson) {
  EXPECT_THROW(Tokenizer::FromJson("{", "tokenizer.json"), UserError);
  EXPECT_THROW(Tokenizer::FromJson("[]", "tokenizer.json"), UserError);
}

TEST(RegexTranslation, KeepsWhatMeansTheSame) {
  for (const char* pattern : {R"([^\s\p{L}]+|\s+(?!\S)|(?i:'s|'t)|a{2,3}b{4}?c++)",
                              R"([a\-\]]\.\\)", "(?<=x)y(?=z)", "一-龥"}) {
    EXPECT_EQ(TranslatePattern(pattern, "f"), pattern);
  }
}

TEST(RegexTranslation, RespellsWhatMeansSomethingElse) {
  EXPECT_EQ(TranslatePattern(R"(\v)", "f"), R"(\x0B)");
  EXPECT_EQ(TranslatePattern(R"(a{,3})", "f"), "a{0,3}");
  EXPECT_EQ(TranslatePattern(R"(\p{^L}\P{^L}\p{Han}\u4e00)", "f"),
            R"(\P{L}\p{L}\p{sc:Han}\x{4e00})");
}

TEST(RegexTranslation, RefusesWhatItDoesNotKnow) {
  for (const char* pattern :
       {R"(\w)", R"(\b)", R"(\h)", R"(\X)", R"(\1)", "^a", "a$", "(?m:a)", "(?<n>a)", "[a[b]]",
        "[a&&b]", "a{2}+", "a{x}", R"(\p{Emoji})", "[a"}) {
    EXPECT_THROW(TranslatePattern(pattern, "f"), UserError) << pattern;
  }
}

}  // namespace
}  // namespace haversack
