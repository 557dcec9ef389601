#include "data/dataset.h"

#include <map>
#include <numeric>
#include <set>

#include "base/random.h"
#include "data/test_util.h"

namespace haversack {
namespace {

class Data : public DataTest {
 protected:
  DataOptions Options(const std::vector<std::string>& files, int64_t seq) {
    return {.files = files,
            .seq = seq,
            .cross_document = false,
            .seed = 7,
            .rules = {.eos_id = kEos, .bos_id = -1},
            .model_dir = folder_.string(),
            .cache_folder = (folder_ / "cache").string(),
            .fallback_folder = folder_.string(),
            .log = {},
            .poll = {}};
  }
  Dataset Open(const DataOptions& options) { return Dataset::Open(options, ByteEncoder()); }
  Dataset Open(const std::string& file, int64_t seq) { return Open(Options({file}, seq)); }
};

std::vector<int32_t> V(std::initializer_list<int> values) { return {values.begin(), values.end()}; }

// What a batch trains: for each segment its tokens and the targets.
void CheckShape(const Batch& batch) {
  const auto size = static_cast<size_t>(batch.sequences * batch.seq);
  ASSERT_EQ(batch.tokens.size(), size);
  ASSERT_EQ(batch.targets.size(), size);
  ASSERT_EQ(batch.positions.size(), size);
  ASSERT_EQ(batch.boundaries.front(), 0);
  ASSERT_EQ(batch.boundaries.back(), static_cast<int32_t>(size));
  for (size_t s = 0; s + 1 < batch.boundaries.size(); ++s) {
    const int32_t begin = batch.boundaries[s], end = batch.boundaries[s + 1];
    ASSERT_LT(begin, end);
    ASSERT_EQ(begin / batch.seq, (end - 1) / batch.seq) << "a segment over two sequences";
    for (int32_t i = begin; i < end; ++i)
      ASSERT_EQ(batch.positions[static_cast<size_t>(i)], i - begin);
    for (int32_t i = begin; i + 1 < end; ++i) {
      const int32_t target = batch.targets[static_cast<size_t>(i)];
      ASSERT_TRUE(target == -1 || target == batch.tokens[static_cast<size_t>(i) + 1]);
    }
  }
  ASSERT_EQ(batch.valid_targets, std::count_if(batch.targets.begin(), batch.targets.end(),
                                               [](int32_t target) { return target >= 0; }));
}

TEST_F(Data, SeamsBetweenDocumentsAreNoTargets) {
  std::string lines;
  for (int i = 0; i < 64; ++i) lines += "{\"text\":\"ab\"}\n";
  const Dataset data = Open(Put("a.jsonl", lines), 12);
  EXPECT_EQ(data.sequences(), 16u);
  EXPECT_EQ(data.targets(), 128u);
  Batch batch;
  data.Fill(0, 1, batch);
  CheckShape(batch);
  EXPECT_EQ(batch.tokens, V({'a', 'b', kEos, 'a', 'b', kEos, 'a', 'b', kEos, 'a', 'b', kEos}));
  EXPECT_EQ(batch.targets, V({'b', kEos, -1, 'b', kEos, -1, 'b', kEos, -1, 'b', kEos, -1}));
  EXPECT_EQ(batch.boundaries, V({0, 3, 6, 9, 12}));
  EXPECT_EQ(batch.positions, V({0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}));
}

TEST_F(Data, ADocumentGoesOnInTheNextSequenceAndNoTargetIsLost) {
  const Dataset data = Open(Put("a.txt", "abcdefgh"), 4);
  Batch batch;
  data.FillInOrder(0, 3, batch);
  CheckShape(batch);
  EXPECT_EQ(data.sequences(), 2u);  // the end alone has nothing to predict
  EXPECT_EQ(batch.tokens, V({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 0, 0, 0, 0}));
  EXPECT_EQ(batch.targets, V({'b', 'c', 'd', 'e', 'f', 'g', 'h', kEos, -1, -1, -1, -1}));
  EXPECT_EQ(batch.boundaries, V({0, 4, 8, 12}));
}

TEST_F(Data, CrossDocumentTurnsSegmentsAndSeamsOff) {
  const std::string path = Put("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cd\"}\n");
  DataOptions options = Options({path}, 8);
  options.cross_document = true;
  const Dataset data = Open(options);
  Batch batch;
  data.FillInOrder(0, 1, batch);
  EXPECT_EQ(batch.targets, V({'b', kEos, 'c', 'd', kEos, -1, -1, -1}));
  EXPECT_EQ(batch.boundaries, V({0, 6, 8}));
  EXPECT_EQ(batch.positions, V({0, 1, 2, 3, 4, 5, 0, 1}));
  EXPECT_EQ(data.targets(), 5u);
  EXPECT_NE(data.hash(), Open(path, 8).hash());
}

TEST_F(Data, WithoutAnEndTokenEveryTokenButTheFirstIsPredictedOnce) {
  DataOptions options = Options({Put("a.txt", "abcdefghijk")}, 4);
  options.rules = {};
  const Dataset data = Open(options);
  Batch batch;
  data.FillInOrder(0, 3, batch);
  EXPECT_EQ(data.targets(), 10u);
  EXPECT_EQ(batch.targets, V({'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', -1, -1}));
  options.files = {Put("one.txt", "a")};
  ExpectRefused([&] { Open(options); }, {"one.txt", "nothing to predict"});
}

TEST_F(Data, LessThanOneSequenceIsPaddedAndRepeated) {
  const Dataset data = Open(Put("a.txt", "0123456789"), 128);
  EXPECT_EQ(data.sequences(), 1u);
  Batch batch;
  data.Fill(5, 4, batch);
  CheckShape(batch);
  EXPECT_EQ(batch.valid_targets, 4 * 10);  // nine bytes and the end
  EXPECT_EQ(Open(Put("b.txt", "0"), 128).targets(), 1u);
}

TEST_F(Data, EachEpochUsesEverySequenceOnceInAnotherOrder) {
  std::string lines;
  for (int i = 0; i < 9; ++i)
    lines += "{\"text\":\"" + std::string(15, static_cast<char>('a' + i)) + "\"}\n";
  const std::string path = Put("a.jsonl", lines);
  const Dataset data = Open(path, 16);
  ASSERT_EQ(data.sequences(), 9u);
  std::map<int32_t, int> used;
  std::vector<std::vector<int32_t>> epochs(4);
  Batch batch;
  for (uint64_t cursor = 0; cursor < 36; cursor += 2) {  // batches reach over the end of an epoch
    data.Fill(cursor, 2, batch);
    CheckShape(batch);
    for (size_t row = 0; row < 2; ++row) {
      ++used[batch.tokens[row * 16]];
      epochs[(cursor + row) / 9].push_back(batch.tokens[row * 16]);
    }
  }
  for (const auto& [document, times] : used) EXPECT_EQ(times, 4) << document;
  for (const auto& epoch : epochs) EXPECT_EQ(std::set(epoch.begin(), epoch.end()).size(), 9u);
  EXPECT_NE(epochs[0], epochs[1]);
  // A cursor alone brings back the batch, in a new reader too.
  Batch again;
  Open(path, 16).Fill(34, 2, again);
  EXPECT_EQ(again.tokens, batch.tokens);
  DataOptions other = Options({path}, 16);
  other.seed = 8;
  std::vector<int32_t> order;
  const Dataset shuffled = Open(other);
  for (uint64_t cursor = 0; cursor < 9; ++cursor) {
    shuffled.Fill(cursor, 1, again);
    order.push_back(again.tokens[0]);
  }
  EXPECT_NE(order, epochs[0]);
}

TEST_F(Data, ARecordWithAPromptIsKeptWholeWhereItFits) {
  const Dataset data = Open(Put("a.jsonl", R"({"prompt":"abc","completion":"d"}
{"prompt":"efg","completion":"h"}
{"text":"xyz"}
{"prompt":"i","completion":"j"}
)"),
                            8);
  Batch batch;
  data.FillInOrder(0, static_cast<int64_t>(data.sequences()), batch);
  CheckShape(batch);
  EXPECT_EQ(batch.tokens, V({'a',  'b', 'c', 'd', kEos, 0,   0,   0,    'e', 'f', 'g', 'h',
                             kEos, 'x', 'y', 'z', kEos, 'i', 'j', kEos, 0,   0,   0,   0}));
  EXPECT_EQ(batch.targets, V({-1, -1,  'd', kEos, -1, -1,  -1,   -1, -1, -1, 'h', kEos,
                              -1, 'y', 'z', kEos, -1, 'j', kEos, -1, -1, -1, -1,  -1}));
  EXPECT_EQ(batch.valid_targets, static_cast<int64_t>(data.targets()));
}

TEST_F(Data, ACompletionBehindALongPromptIsStillLearnedWithThePromptThatFits) {
  std::string lines;
  for (int i = 0; i < 32; ++i) {
    lines += "{\"prompt\":\"" + std::string(200, 'p') + "\",\"completion\":\"ok\"}\n";
  }
  const Dataset data = Open(Put("a.jsonl", lines), 64);
  EXPECT_EQ(data.sequences(), 32u);  // pieces of prompt alone are left out
  EXPECT_EQ(data.targets(), 96u);
  Batch batch;
  data.Fill(0, 4, batch);
  CheckShape(batch);
  EXPECT_EQ(batch.valid_targets, 12);
  EXPECT_EQ(std::count(batch.tokens.begin(), batch.tokens.end(), 'p'), 4 * 61);
}

TEST_F(Data, RecordsWithNothingToLearnAreCountedOrRefused) {
  const std::string question = R"({"messages":[{"role":"user","content":"q"}]})";
  const std::string answer =
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})";
  const Dataset data = Open(Put("a.jsonl", question + "\n" + answer + "\n{\"text\":\"\"}\n"), 64);
  EXPECT_EQ(data.documents(), 1u);
  EXPECT_EQ(data.targets(), 2u);
  EXPECT_NE(data.Summary().find("1 records with nothing"), std::string::npos) << data.Summary();
  EXPECT_NE(data.Summary().find("1 records with empty text"), std::string::npos) << data.Summary();
  ExpectRefused([&] { Open(Put("b.jsonl", question + "\n"), 64); },
                {"b.jsonl", "nothing to predict", "1 with nothing"});
}

// Every target of the corpus exactly once an epoch, for random mixes of records and lengths of
// sequence.
TEST_F(Data, NoTargetIsLostOrRepeatedByPacking) {
  const RandomStream random({.seed = 1});
  uint64_t draw = 0;
  const auto below = [&](uint64_t bound) { return random.Below(draw++, bound); };
  for (int trial = 0; trial < 40; ++trial) {
    std::string lines;
    std::map<int32_t, int64_t> expected;
    const bool plain = trial % 4 == 0;
    char next = 'a';
    for (uint64_t i = 0; i < 1 + below(12); ++i) {
      std::string text;
      for (uint64_t k = 0; k < 1 + below(40);
           ++k, next = next == 'z' ? 'a' : static_cast<char>(next + 1)) {
        text += next;
      }
      const size_t split = plain ? 0 : below(text.size() + 1);
      const bool pair = !plain && below(3) > 0;
      if (pair) {
        lines += "{\"prompt\":\"" + text.substr(0, split) + "\",\"completion\":\"" +
                 text.substr(split) + "\"}\n";
      } else {
        lines += "{\"text\":\"" + text + "\"}\n";
      }
      for (size_t k = std::max<size_t>(pair ? split : 0, 1); k < text.size(); ++k)
        ++expected[text[k]];
      ++expected[kEos];
    }
    const std::string path = Put("a.jsonl", lines);
    for (const int64_t seq : {1, 2, 3, 7, 16, 64}) {
      const Dataset data = Open(path, seq);
      std::map<int32_t, int64_t> seen;
      Batch batch;
      data.Fill(data.sequences() * 3, static_cast<int64_t>(data.sequences()), batch);
      CheckShape(batch);
      for (const int32_t target : batch.targets) {
        if (target >= 0) ++seen[target];
      }
      ASSERT_EQ(seen, expected) << "seq " << seq << "\n" << lines;
      ASSERT_EQ(batch.valid_targets, static_cast<int64_t>(data.targets()));
      for (uint64_t i = 0; i < data.sequences(); ++i) {
        data.FillInOrder(i, 1, batch);
        ASSERT_GT(batch.valid_targets, 0) << "an empty step, seq " << seq << "\n" << lines;
      }
    }
  }
}

TEST_F(Data, ATokenBeyondTheEmbeddingIsNamedEvenInTheLastLine) {
  const Encoder encoder = ByteEncoder({"<new>"});
  const std::string good = Put("good.jsonl", "{\"text\":\"a\"}\n");
  const std::string bad = Put("bad.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b<new>\"}\n");
  Dataset::Open(Options({good}, 8), encoder).CheckVocabulary(259, encoder);
  for (int run = 0; run < 2; ++run) {  // the second from the cache
    const Dataset data = Dataset::Open(Options({good, bad}, 8), encoder);
    data.CheckVocabulary(260, encoder);
    ExpectRefused([&] { data.CheckVocabulary(259, encoder); },
                  {bad + ":2", "'<new>'", "259 rows", "260 tokens"});
  }
}

TEST_F(Data, TheIdentityFollowsContentTokenizerAndRules) {
  const std::string path = Put("a.txt", "some text");
  const std::string hash = Open(path, 8).hash();
  EXPECT_EQ(Open(Put("b.txt", "some text"), 8).hash(), hash);
  EXPECT_NE(Open(Put("b.txt", "Some text"), 8).hash(), hash);
  EXPECT_NE(Open(path, 9).hash(), hash);
  DataOptions options = Options({path}, 8);
  options.rules = {};
  EXPECT_NE(Open(options).hash(), hash);
  Put("tokenizer.json", "{}");
  EXPECT_NE(Open(path, 8).hash(), hash);
}

}  // namespace
}  // namespace haversack
