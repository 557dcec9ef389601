#include <fcntl.h>
#include <sys/file.h>

#include <cstdlib>

#include "base/cache_folder.h"
#include "base/random.h"
#include "base/threads.h"
#include "data/corpus_files.h"
#include "data/test_util.h"
#include "data/token_cache.h"
#include "data/token_store.h"
#include "data/tokenize_corpus.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;
using Store = DataTest;

TEST_F(Store, WhatIsAddedIsReadBackInBothWidths) {
  for (const int32_t vocab : {65536, 65537}) {
    const RandomStream random({.seed = 5});
    std::vector<int32_t> tokens;
    std::vector<uint8_t> learned;
    std::vector<uint64_t> ends;
    const fs::path folder = folder_ / std::to_string(vocab);
    fs::create_directories(folder);
    StoreWriter writer(folder.string(), vocab);
    for (uint64_t document = 0; document < 700; ++document) {
      const uint64_t length = random.Below(document, 400);
      for (uint64_t i = 0; i < length; ++i) {
        const uint64_t at = 1000 + tokens.size();
        tokens.push_back(static_cast<int32_t>(random.Below(at, static_cast<uint64_t>(vocab))));
        learned.push_back(random.Below(at + 1000000, 3) > 0);
      }
      const std::span<const int32_t> all = tokens;
      const std::span<const uint8_t> marks = learned;
      const size_t half = length / 2;
      writer.Add(all.last(length).first(half), marks.last(length).first(half));
      writer.Add(all.last(length).subspan(half), marks.last(length).subspan(half));
      writer.EndDocument(document % 5 == 0);
      if (length > 0) ends.push_back(tokens.size());
    }
    writer.Finish("key");
    const TokenStore store = TokenStore::Open(folder.string(), "key");
    EXPECT_EQ(store.info().tokens, tokens.size());
    EXPECT_EQ(store.info().documents, ends.size());
    EXPECT_EQ(store.info().token_bytes, vocab == 65536 ? 2u : 4u);
    EXPECT_EQ(store.info().largest_id, *std::max_element(tokens.begin(), tokens.end()));
    for (uint64_t trial = 0; trial < 200; ++trial) {
      const uint64_t begin = random.Below(9000000 + trial, tokens.size());
      const uint64_t count = random.Below(9100000 + trial, tokens.size() - begin + 1);
      std::vector<int32_t> read(count);
      std::vector<uint8_t> marks(count);
      store.ReadTokens(begin, count, read.data());
      store.ReadLearned(begin, count, marks.data());
      ASSERT_TRUE(std::equal(read.begin(), read.end(), tokens.begin() + static_cast<long>(begin)));
      ASSERT_TRUE(
          std::equal(marks.begin(), marks.end(), learned.begin() + static_cast<long>(begin)));
      const uint64_t document = store.FindDocument(begin);
      const TokenStore::Document found = store.ReadDocuments(document, 1)[0];
      ASSERT_LE(found.begin, begin);
      ASSERT_GT(found.end, begin);
      ASSERT_EQ(found.end, ends[document]);
    }
  }
}

TEST_F(Store, DamageOfAnyByteIsSeen) {
  const auto write = [&] {
    StoreWriter writer(folder_.string(), 300);
    const std::vector<int32_t> tokens = {1, 2, 3, 299};
    const std::vector<uint8_t> learned = {0, 1, 0, 1};
    writer.Add(tokens, learned);
    writer.EndDocument(true);
    writer.Finish("key");
  };
  write();
  EXPECT_EQ(TokenStore::Open(folder_.string(), "key").info().targets, 2u);
  ExpectRefused([&] { TokenStore::Open(folder_.string(), "other"); }, {"store.json"});
  for (const char* name : {"tokens.bin", "learned.bin", "documents.bin"}) {
    const std::string bytes = ReadWholeFile((folder_ / name).string());
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::string damaged = bytes;
      damaged[i] ^= 1;
      Put(name, damaged);
      ExpectRefused([&] { TokenStore::Open(folder_.string(), "key"); }, {name, "damaged"});
    }
    Put(name, bytes + "x");
    ExpectRefused([&] { TokenStore::Open(folder_.string(), "key"); }, {name});
    Put(name, bytes);
  }
  for (const char* bad : {"", "{}", "[]", "{\"version\":1,\"key\":\"key\"}"}) {
    Put("store.json", bad);
    ExpectRefused([&] { TokenStore::Open(folder_.string(), "key"); }, {"store.json"});
  }
}

void BuildSmall(const std::string& folder, const std::string& key) {
  StoreWriter writer(folder, 300);
  const std::vector<int32_t> tokens = {1, 2, 3};
  writer.Add(tokens, {});
  writer.EndDocument(false);
  writer.Finish(key);
}

TEST_F(Store, TheCacheIsBuiltOnceAndAgainWhereDamaged) {
  std::vector<std::string> log;
  int built = 0;
  const TokenCacheOptions options = {(folder_ / "cache").string(), folder_.string(),
                                     [&](const std::string& line) { log.push_back(line); }};
  const auto build = [&](const std::string& folder) {
    ++built;
    BuildSmall(folder, "key");
  };
  EXPECT_EQ(OpenOrBuildStore("key", options, build).info().tokens, 3u);
  EXPECT_EQ(OpenOrBuildStore("key", options, build).info().tokens, 3u);
  EXPECT_EQ(built, 1);
  EXPECT_TRUE(log.empty());
  fs::resize_file(folder_ / "cache/tokens/key/tokens.bin", 1);
  fs::create_directories(folder_ / "cache/tokens/key.tmp/left-over");
  EXPECT_EQ(OpenOrBuildStore("key", options, build).info().tokens, 3u);
  EXPECT_EQ(built, 2);
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("damaged"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "cache/tokens/key.tmp"));
}

TEST_F(Store, AFailedBuildLeavesNothingThatCouldBeTakenForWhole) {
  const TokenCacheOptions options = {(folder_ / "cache").string(), folder_.string(), {}};
  ExpectRefused(
      [&] {
        OpenOrBuildStore("key", options, [&](const std::string& folder) {
          BuildSmall(folder, "key");
          throw FileError("write", folder, ENOSPC);
        });
      },
      {"No space left", "HAVERSACK_CACHE"}, ExitCode::kDevice);
  EXPECT_FALSE(fs::exists(folder_ / "cache/tokens/key"));
  EXPECT_FALSE(fs::exists(folder_ / "cache/tokens/key.tmp"));
}

TEST_F(Store, WithoutACacheTheTokensLiveAsLongAsTheirReader) {
  Put("file", "x");
  std::vector<std::string> log;
  for (const std::optional<std::string>& cache :
       {std::optional<std::string>(), std::optional((folder_ / "file/cache").string())}) {
    const TokenCacheOptions options = {cache, folder_.string(),
                                       [&](const std::string& line) { log.push_back(line); }};
    const TokenStore store = OpenOrBuildStore(
        "key", options, [](const std::string& folder) { BuildSmall(folder, "key"); });
    std::vector<int32_t> tokens(3);
    store.ReadTokens(0, 3, tokens.data());
    EXPECT_EQ(tokens, (std::vector<int32_t>{1, 2, 3}));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  }
  EXPECT_EQ(log.size(), 2u);
}

TEST_F(Store, TheCacheFolderFollowsTheEnvironment) {
  ::setenv("HAVERSACK_CACHE", "/own", 1);
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(CacheFolder(), "/own");
  ::unsetenv("HAVERSACK_CACHE");
  EXPECT_EQ(CacheFolder(), "/xdg/haversack");
  ::unsetenv("XDG_CACHE_HOME");
  ::setenv("HOME", "/me", 1);
  EXPECT_EQ(CacheFolder(), "/me/.cache/haversack");
  ::unsetenv("HOME");
  EXPECT_EQ(CacheFolder(), std::nullopt);
}

// A word is a token, so a cut inside a word would show.
Encoder WordEncoder() {
  Encoder encoder = ByteEncoder();
  encoder.encode = [](std::string_view text) {
    std::vector<int32_t> ids;
    uint32_t word = 0;
    size_t length = 0;
    for (const char c : text) {
      if (c == ' ' || c == '\n') {
        if (length > 0) ids.push_back(static_cast<int32_t>(1000 + word % 60000));
        ids.push_back(c);
        word = 0;
        length = 0;
      } else {
        word = word * 31 + static_cast<unsigned char>(c);
        ++length;
      }
    }
    if (length > 0) ids.push_back(static_cast<int32_t>(1000 + word % 60000));
    return ids;
  };
  encoder.vocab_size = 61000;
  return encoder;
}

std::vector<int32_t> AllTokens(const TokenStore& store) {
  std::vector<int32_t> tokens(store.info().tokens);
  store.ReadTokens(0, tokens.size(), tokens.data());
  return tokens;
}

TokenStore Tokenized(const std::vector<std::string>& paths, const Encoder& encoder,
                     const fs::path& folder) {
  fs::create_directories(folder);
  StoreWriter writer(folder.string(), encoder.vocab_size);
  TokenizeCorpus(ListCorpusFiles(paths), encoder, {}, {.eos_id = kEos}, {}, writer);
  writer.Finish("key");
  return TokenStore::Open(folder.string(), "key");
}

TEST_F(Store, PiecesAndThreadsDoNotChangeTheTokens) {
  std::string text;
  for (int64_t i = 0; i < 600000; ++i) text += std::to_string(i * 7919) + (i % 9 ? " " : "\n");
  const std::string text_path = Put("a.txt", text);
  std::string lines;
  std::vector<int32_t> expected = WordEncoder().encode(text);
  expected.push_back(kEos);
  for (int i = 0; i < 20000; ++i) {
    const std::string record = "word" + std::to_string(i) + " and more";
    lines += "{\"text\":\"" + record + "\"}\n";
    const std::vector<int32_t> ids = WordEncoder().encode(record);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(kEos);
  }
  const std::string lines_path = Put("b.jsonl", lines);
  const int threads = NumThreads();
  for (const int count : {1, 2, 3}) {
    SetNumThreads(count);
    const TokenStore store =
        Tokenized({text_path, lines_path}, WordEncoder(), folder_ / std::to_string(count));
    EXPECT_EQ(AllTokens(store), expected);
    EXPECT_EQ(store.info().documents, 20001u);
    EXPECT_FALSE(store.info().has_mask);
  }
  SetNumThreads(threads);
}

TEST_F(Store, AnArrayAndItsLinesGiveTheSameTokens) {
  const std::string lines = Put("a.jsonl",
                                "\xEF\xBB\xBF{\"text\":\"one\"}\r\n\r\n{\"text\":\"\"}\n"
                                "{\"prompt\":\"p\",\"completion\":\"c\"}");
  const std::string array = Put("b.json",
                                "[\n {\"text\": \"one\"},\n {\"text\": \"\"},\n"
                                " {\"prompt\": \"p\", \"completion\": \"c\"}\n]\n");
  const TokenStore first = Tokenized({lines}, ByteEncoder(), folder_ / "1");
  const TokenStore second = Tokenized({array}, ByteEncoder(), folder_ / "2");
  EXPECT_EQ(AllTokens(first), (std::vector<int32_t>{'o', 'n', 'e', kEos, 'p', 'c', kEos}));
  EXPECT_EQ(AllTokens(second), AllTokens(first));
  EXPECT_EQ(first.info().empty_records, 1u);
  EXPECT_EQ(first.info().targets, 5u);
  EXPECT_EQ(first.info().first_targets, 1u);
}

TEST_F(Store, TextKeepsItsBytesAndMustBeUtf8) {
  const TokenStore store = Tokenized({Put("a.txt", "a\r\nb\rc\n")}, ByteEncoder(), folder_ / "s");
  EXPECT_EQ(AllTokens(store), (std::vector<int32_t>{97, 13, 10, 98, 13, 99, 10, kEos}));
  for (const char* bad :
       {"ok\n\nx\xe9 y", "\xed\xa0\x80", "\xc0\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    const std::string path = Put("bad.txt", bad);
    ExpectRefused(
        [&] { Tokenized({path}, ByteEncoder(), folder_ / "s"); },
        {std::string(bad).starts_with("ok") ? path + ":3: byte 0xe9" : path + ":1: byte", "UTF-8"});
  }
}

TEST_F(Store, WhatTheTokenizerRefusesIsNamedByFileAndLine) {
  Encoder encoder = ByteEncoder();
  const auto bytes = encoder.encode;
  encoder.encode = [bytes](std::string_view text) {
    if (text.find('#') != std::string_view::npos) {
      throw UserError(ExitCode::kUsage, "no token for '#'");
    }
    return bytes(text);
  };
  const std::string text = Put("a.txt", "one\ntwo\nthree # four\nfive");
  ExpectRefused([&] { Tokenized({text}, encoder, folder_ / "s"); },
                {text + ":3: no token for '#'"});
  const std::string lines = Put("a.jsonl", "{\"text\":\"a\"}\n\n{\"text\":\"#\"}\n");
  ExpectRefused([&] { Tokenized({lines}, encoder, folder_ / "s"); },
                {lines + ":3: no token for '#'"});
}

TEST_F(Store, TheFirstBadRecordIsReportedWhateverTheThreads) {
  std::string lines;
  for (int i = 0; i < 500; ++i) lines += "{\"text\":\"a\"}\n";
  for (int i = 0; i < 50; ++i) lines += "{\"text\":3}\n";
  const std::string path = Put("a.jsonl", lines);
  for (int trial = 0; trial < 10; ++trial) {
    ExpectRefused([&] { Tokenized({path}, ByteEncoder(), folder_ / "s"); },
                  {path + ":501: field 'text'"});
  }
}

}  // namespace
}  // namespace haversack
