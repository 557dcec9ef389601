#include "base/hash.h"

#include <gtest/gtest.h>

namespace haversack {
namespace {

uint64_t HashOf(std::string_view text) {
  Hasher hasher;
  hasher.Add(text.data(), text.size());
  return hasher.Digest();
}

// Values of the published XXH64 test vectors and of the `xxhash` Python package.
TEST(Hash, EqualsPublishedValues) {
  EXPECT_EQ(HashOf(""), 0xef46db3751d8e999u);
  EXPECT_EQ(HashOf("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(HashOf("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(HashOf("The quick brown fox jumps over the lazy dog"), 0x0b242d361fda71bcu);
}

TEST(Hash, DoesNotDependOnThePieces) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 37);
  for (size_t piece = 1; piece < 100; ++piece) {
    Hasher hasher;
    for (size_t i = 0; i < text.size(); i += piece) {
      hasher.Add(text.data() + i, std::min(piece, text.size() - i));
    }
    EXPECT_EQ(hasher.Digest(), HashOf(text));
  }
}

TEST(Hash, FieldsDoNotRunTogether) {
  Hasher a, b;
  a.AddField("ab");
  a.AddField("c");
  b.AddField("a");
  b.AddField("bc");
  EXPECT_NE(a.Hex(), b.Hex());
}

}  // namespace
}  // namespace haversack
