#include "io/weight_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

class Weights : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("weight_files_test_" + std::to_string(getpid()));
    fs::remove_all(root_);
    model_ = root_ / "model";
    fs::create_directories(model_);
  }
  void TearDown() override { fs::remove_all(root_); }

  // A file with the named one-element tensors, all of `value`.
  void PutTensors(const fs::path& path, const std::vector<std::string>& names, float value) {
    std::vector<TensorSpec> specs;
    for (const std::string& name : names) specs.push_back({name, "F32", {1}});
    SafetensorsWriter writer = SafetensorsWriter::Open(path.string(), specs);
    for (const std::string& name : names) writer.Write(name, &value);
    writer.Finish();
  }
  void PutText(const fs::path& path, const std::string& text) {
    File file = File::Create(path.string());
    file.WriteAt(text.data(), text.size(), 0);
  }
  void PutShards() {
    PutTensors(model_ / "s1.safetensors", {"a"}, 2);
    PutTensors(model_ / "s2.safetensors", {"b"}, 3);
    PutText(Index(), R"({"metadata":{"total_size":"wrong"},)"
                     R"("weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  }
  fs::path Index() { return model_ / "model.safetensors.index.json"; }

  void ExpectRefused(std::initializer_list<std::string> words) {
    try {
      WeightFiles::Open(model_.string());
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      for (const std::string& word : words) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << "'" << word << "' is not in: " << error.what();
      }
    }
  }

  fs::path root_, model_;
};

TEST_F(Weights, AnIndexJoinsShardsWhateverItsTotalSizeSays) {
  PutShards();
  const WeightFiles weights = WeightFiles::Open(model_.string());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b"}));
  float value = 0;
  weights.ReadAsF32("b", &value);
  EXPECT_EQ(value, 3);
  EXPECT_TRUE(weights.notes().empty());
  EXPECT_TRUE(weights.FileOf("b").ends_with("s2.safetensors"));
  EXPECT_THROW(weights.Info("c"), UserError);
}

TEST_F(Weights, ASingleFileBesideAnIndexWinsWithANote) {
  PutShards();
  PutTensors(model_ / "model.safetensors", {"a", "b"}, 1);
  for (const bool shard_gone : {false, true}) {
    if (shard_gone) fs::remove(model_ / "s2.safetensors");
    const WeightFiles weights = WeightFiles::Open(model_.string());
    float a = 0, b = 0;
    weights.ReadAsF32("a", &a);
    weights.ReadAsF32("b", &b);
    EXPECT_EQ(a, 1);
    EXPECT_EQ(b, 1);
    EXPECT_EQ(weights.notes().size(), 1u);
  }
}

TEST_F(Weights, AShardThatIsGoneCutOrNotTheOneNamesTensorAndFile) {
  PutShards();
  fs::remove(model_ / "s2.safetensors");
  ExpectRefused({"'b'", "s2.safetensors", "missing"});
  PutTensors(model_ / "s2.safetensors", {"b"}, 3);
  fs::resize_file(model_ / "s2.safetensors", fs::file_size(model_ / "s2.safetensors") - 2);
  ExpectRefused({"'b'", "s2.safetensors", "cut off"});
  PutTensors(model_ / "s1.safetensors", {"a", "b"}, 2);
  PutTensors(model_ / "s2.safetensors", {"c"}, 3);
  ExpectRefused({"'b'", "s2.safetensors", "it is in", "s1.safetensors"});
}

TEST_F(Weights, ATensorThatTheIndexDoesNotListIsNoted) {
  PutShards();
  PutTensors(model_ / "s2.safetensors", {"b", "stray"}, 3);
  const WeightFiles weights = WeightFiles::Open(model_.string());
  EXPECT_FALSE(weights.Has("stray"));
  ASSERT_EQ(weights.notes().size(), 1u);
  EXPECT_NE(weights.notes()[0].find("'stray'"), std::string::npos);
}

TEST_F(Weights, AnIndexThatLeadsOutOfTheDirectoryIsRefused) {
  fs::create_directories(root_ / "other");
  PutTensors(root_ / "other/model.safetensors", {"a"}, 9);
  fs::create_symlink(root_ / "other/model.safetensors", model_ / "link.safetensors");
  fs::create_directories(model_ / "inner");
  PutTensors(model_ / "inner/x.safetensors", {"a"}, 4);
  for (const std::string& shard :
       {std::string("../other/model.safetensors"), (root_ / "other/model.safetensors").string(),
        std::string("link.safetensors"), std::string(""), std::string("inner/../../other/x")}) {
    PutText(Index(), R"({"weight_map":{"a":")" + shard + R"("}})");
    ExpectRefused({"'a'", shard, "outside"});
  }
  PutText(Index(), R"({"weight_map":{"a":"inner/x.safetensors"}})");
  EXPECT_TRUE(WeightFiles::Open(model_.string()).Has("a"));
}

TEST_F(Weights, ASnapshotOfAHuggingFaceCacheMayLinkToItsBlobs) {
  const fs::path snapshot = root_ / "models--x/snapshots/0123";
  fs::create_directories(snapshot);
  fs::create_directories(root_ / "models--x/blobs");
  PutTensors(root_ / "models--x/blobs/abcd", {"a"}, 9);
  fs::create_symlink("../../blobs/abcd", snapshot / "s.safetensors");
  PutText(snapshot / "model.safetensors.index.json", R"({"weight_map":{"a":"s.safetensors"}})");
  EXPECT_TRUE(WeightFiles::Open(snapshot.string()).Has("a"));
}

TEST_F(Weights, AnIndexOrDirectoryThatIsNoneIsRefused) {
  ExpectRefused({"no weights"});
  PutText(model_ / "pytorch_model.bin", "x");
  ExpectRefused({"pytorch_model.bin", "safetensors"});
  for (const char* bad :
       {"[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        "{", R"({"weight_map":{"a":"x","a":"y"}})"}) {
    PutText(Index(), bad);
    ExpectRefused({"model.safetensors.index.json"});
  }
  model_ = root_ / "nothing";
  ExpectRefused({"no such model directory"});
}

}  // namespace
}  // namespace haversack
