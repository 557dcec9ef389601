#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/config.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

Graph TinyGraph() {
  const nlohmann::json json = {{"model_type", "llama"},    {"hidden_size", 8},
                               {"intermediate_size", 16},  {"num_hidden_layers", 1},
                               {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                               {"vocab_size", 16},         {"tie_word_embeddings", true}};
  return BuildGraph(ParseModelConfig(json, "test"), {.positions = 16, .loss_chunk = 8});
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : folder_(fs::temp_directory_path() / fmt::format("haversack-checkpoint-{}", getpid())),
        graph_(TinyGraph()),
        layout_(graph_),
        moments_(graph_, MomentType::kF32),
        values_(3 * layout_.total, 0.0f),
        store_(Open()) {
    fs::remove_all(folder_);
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i) * 0.5f;
  }
  ~CheckpointTest() override { fs::remove_all(folder_); }

  CheckpointStore Open() const {
    return CheckpointStore(folder_.string(), graph_, layout_, moments_);
  }
  ModelState State(std::vector<float>& values) const {
    ModelState state;
    state.weights = values.data();
    state.m = values.data() + layout_.total;
    state.v = values.data() + 2 * layout_.total;
    return state;
  }
  void Save(int64_t step, int64_t keep = 2, bool best = false) {
    store_.Save({{"step", step}}, State(values_), keep, best);
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  std::optional<int64_t> Newest(std::vector<std::string>* said = nullptr) const {
    CheckpointStore store = Open();
    return FindNewest(store, said);
  }
  static std::optional<int64_t> FindNewest(CheckpointStore& store,
                                           std::vector<std::string>* said = nullptr) {
    const auto found = store.FindNewest(Verify::kContent, [&](const std::string& line) {
      if (said != nullptr) said->push_back(line);
    });
    if (!found) return std::nullopt;
    return found->at("step").get<int64_t>();
  }
  void FlipBit(const std::string& name, uint64_t at) const {
    std::fstream file(folder_ / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 4));
  }
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }

  fs::path folder_;
  Graph graph_;
  ParamLayout layout_;
  MomentLayout moments_;
  std::vector<float> values_;
  CheckpointStore store_;
};

TEST_F(CheckpointTest, GivesBackEveryBit) {
  Save(3);
  std::vector<float> read(values_.size(), -1);
  store_.LoadState(3, State(read));
  for (int part = 0; part < 3; ++part) {
    for (size_t p = 0; p < graph_.params.size(); ++p) {
      const int64_t begin = part * layout_.total + layout_.offset[p];
      for (int64_t i = 0; i < graph_.params[p].count(); ++i) {
        ASSERT_EQ(read[begin + i], values_[begin + i]);
      }
    }
  }
}

TEST_F(CheckpointTest, TheNewestIsTheHighestStepNotTheLastName) {
  for (const int64_t step : {9, 10, 100000000, 99999999}) Save(step, 10);
  EXPECT_EQ(Newest(), 100000000);
}

TEST_F(CheckpointTest, KeepsTheHighestStepsAndTheBest) {
  for (int64_t step = 1; step <= 6; ++step) Save(step, 2, step == 2);
  EXPECT_EQ(Names(), (std::set<std::string>{"step-00000002", "step-00000005", "step-00000006"}));
  Save(7, 1);
  EXPECT_EQ(Names(), (std::set<std::string>{"step-00000002", "step-00000007"}));
  Save(8, 1, true);
  EXPECT_EQ(Names(), (std::set<std::string>{"step-00000008"}));
}

TEST_F(CheckpointTest, RemovesLeftoversAndNothingForeign) {
  Save(1);
  Write("writing-00000002/state.safetensors", "torn");
  Write("best-of-mine/note", "mine");
  Write("step-2/note", "not named by us");
  Write("step-00000001.bak/note", "mine");
  Save(3, 1);
  EXPECT_EQ(Names(), (std::set<std::string>{"best-of-mine", "step-00000001.bak", "step-00000003",
                                            "step-2"}));
}

TEST_F(CheckpointTest, PassesOverWhatIsCutOrUnfinished) {
  Save(1, 9);
  Save(2, 9);
  Save(3, 9);
  Save(4, 9);
  fs::remove(folder_ / "step-00000004" / "DONE");
  fs::resize_file(folder_ / "step-00000003" / "state.safetensors",
                  fs::file_size(folder_ / "step-00000003" / "state.safetensors") - 1);
  fs::remove(folder_ / "step-00000002" / "state.json");
  std::vector<std::string> said;
  EXPECT_EQ(Newest(&said), 1);
  ASSERT_EQ(said.size(), 3u);
  EXPECT_NE(said[0].find("step-00000004 is passed over"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("state.safetensors has"), std::string::npos) << said[1];
  EXPECT_NE(said[2].find("state.json is missing"), std::string::npos) << said[2];
  // Those that are older than a complete one go at the next save.
  Save(5, 9);
  EXPECT_EQ(Names(), (std::set<std::string>{"step-00000001", "step-00000005"}));
}

TEST_F(CheckpointTest, PassesOverWhatHasAFlippedBitAnywhere) {
  for (const char* name : {"state.safetensors", "state.json", "DONE"}) {
    SCOPED_TRACE(name);
    Save(1, 9);
    const uint64_t size = fs::file_size(folder_ / "step-00000001" / name);
    // Headers, tensors, the last byte of each; DONE's last byte is a line feed that says nothing.
    for (uint64_t at = 0; at + 1 < size; at += 1 + size / 50) {
      Save(2, 9);
      FlipBit(fmt::format("step-00000002/{}", name), at);
      std::vector<std::string> said;
      ASSERT_EQ(Newest(&said), 1) << at;
      ASSERT_EQ(said.size(), 1u);
      EXPECT_NE(said[0].find("step-00000002 is passed over"), std::string::npos) << said[0];
      const bool named = said[0].find(name) != std::string::npos;
      EXPECT_TRUE(named || name == std::string("DONE")) << said[0];
    }
  }
}

TEST_F(CheckpointTest, SizesAloneShowWhetherThereIsOne) {
  Save(2);
  FlipBit("step-00000002/state.safetensors", 5000);
  EXPECT_TRUE(store_.FindNewest(Verify::kSizes, [](const std::string&) {}));
}

TEST_F(CheckpointTest, ADamagedOneThatWasPassedOverDoesNotPushOutTheOneThatWasResumed) {
  Save(1, 9);
  Save(3, 9);
  FlipBit("step-00000003/state.safetensors", 5000);
  ASSERT_EQ(FindNewest(store_), 1);
  Save(2, 1);
  EXPECT_EQ(FindNewest(store_), 2);
  // Saved again, it is whole again.
  Save(3, 1);
  EXPECT_EQ(FindNewest(store_), 3);
  EXPECT_EQ(Names(), (std::set<std::string>{"step-00000003"}));
}

TEST_F(CheckpointTest, DamagedOnesDoNotPushOutACompleteOne) {
  Save(1);
  Save(2);
  fs::remove(folder_ / "step-00000002" / "DONE");
  Write("step-00000003/state.json", "{}");
  Save(4, 1);
  EXPECT_EQ(Newest(), 4);
  EXPECT_EQ(Names(), (std::set<std::string>{"step-00000004"}));
}

TEST_F(CheckpointTest, SavesAStepAgain) {
  Save(2);
  values_[0] = 77;
  Save(2);
  std::vector<float> read(values_.size(), -1);
  store_.LoadState(2, State(read));
  EXPECT_EQ(read[0], 77);
}

TEST_F(CheckpointTest, RefusesNumbersThatAreNotFiniteAndLeavesTheLastOne) {
  Save(1);
  values_[layout_.total] = std::numeric_limits<float>::infinity();
  try {
    Save(2, 1);
    FAIL() << "saved";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kDiverged);
    EXPECT_NE(std::string(error.what()).find("m." + graph_.params[0].name), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(Names(), (std::set<std::string>{"step-00000001"}));
}

TEST_F(CheckpointTest, EightBitMomentsGoAsTheyAreAndDoNotReadAsFloats) {
  nlohmann::json json = {{"model_type", "llama"},    {"hidden_size", 64},
                         {"intermediate_size", 128}, {"num_hidden_layers", 1},
                         {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                         {"vocab_size", 128},        {"tie_word_embeddings", true}};
  const Graph graph =
      BuildGraph(ParseModelConfig(json, "test"), {.positions = 16, .loss_chunk = 8});
  const ParamLayout layout(graph);
  const MomentLayout moments(graph, MomentType::kInt8);
  EXPECT_LT(moments.total * 3, layout.total);
  const auto make = [&](std::vector<float>& values) {
    values.resize(layout.total + 2 * moments.total);
    ModelState state;
    state.weights = values.data();
    state.m = values.data() + layout.total;
    state.v = state.m + moments.total;
    return state;
  };
  std::vector<float> written, read;
  const ModelState from = make(written);
  int number = 0;
  for (const StateTensor& tensor : StateTensors(graph, layout, moments, from)) {
    for (int64_t i = 0; i < tensor.count; ++i) {
      if (tensor.dtype == "F32") {
        static_cast<float*>(tensor.data)[i] = static_cast<float>(++number);
      } else {
        static_cast<uint8_t*>(tensor.data)[i] = static_cast<uint8_t>(++number);
      }
    }
  }
  CheckpointStore store(folder_.string(), graph, layout, moments);
  store.Save({{"step", 1}}, from, 1, false);
  store.LoadState(1, make(read));
  EXPECT_EQ(std::memcmp(read.data(), written.data(), read.size() * sizeof(float)), 0);

  const MomentLayout floats(graph, MomentType::kF32);
  std::vector<float> values(layout.total + 2 * floats.total);
  ModelState state;
  state.weights = values.data();
  state.m = state.weights + layout.total;
  state.v = state.m + floats.total;
  EXPECT_THROW(CheckpointStore(folder_.string(), graph, layout, floats).LoadState(1, state),
               UserError);
}

TEST_F(CheckpointTest, AForeignModelsCheckpointIsNamed) {
  Save(1);
  nlohmann::json json = {{"model_type", "llama"},    {"hidden_size", 16},
                         {"intermediate_size", 16},  {"num_hidden_layers", 1},
                         {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                         {"vocab_size", 16},         {"tie_word_embeddings", true}};
  const Graph other =
      BuildGraph(ParseModelConfig(json, "test"), {.positions = 16, .loss_chunk = 8});
  const ParamLayout layout(other);
  std::vector<float> values(3 * layout.total);
  ModelState state;
  state.weights = values.data();
  state.m = values.data() + layout.total;
  state.v = values.data() + 2 * layout.total;
  EXPECT_THROW(
      CheckpointStore(folder_.string(), other, layout, MomentLayout(other, MomentType::kF32))
          .LoadState(1, state),
      UserError);
}

}  // namespace
}  // namespace haversack
