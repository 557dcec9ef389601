// Stand-ins for a tokenizer and a corpus in the data tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/encoder.h"

namespace haversack {

inline constexpr int32_t kEos = 256, kStart = 257, kEnd = 258;

// Byte b is token b; the control tokens follow from 256 on. Cuts after a blank are safe.
inline Encoder ByteEncoder(std::vector<std::string> extra = {}) {
  std::vector<std::string> control = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  control.insert(control.end(), extra.begin(), extra.end());
  Encoder encoder;
  encoder.encode_ordinary = [](std::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  };
  encoder.encode = [control](std::string_view text) {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      size_t taken = 1;
      int32_t id = static_cast<unsigned char>(text[0]);
      for (size_t i = 0; i < control.size(); ++i) {
        if (text.starts_with(control[i])) {
          id = static_cast<int32_t>(256 + i);
          taken = control[i].size();
        }
      }
      ids.push_back(id);
      text.remove_prefix(taken);
    }
    return ids;
  };
  encoder.safe_cut = [](std::string_view text) {
    const size_t blank = text.rfind(' ');
    return blank == std::string_view::npos ? size_t{0} : blank + 1;
  };
  encoder.token_id = [control](std::string_view token) -> std::optional<int32_t> {
    for (size_t i = 0; i < control.size(); ++i) {
      if (control[i] == token) return static_cast<int32_t>(256 + i);
    }
    return std::nullopt;
  };
  encoder.token_text = [control](int32_t id) {
    return id < 256 ? std::string(1, static_cast<char>(id))
                    : control.at(static_cast<size_t>(id) - 256);
  };
  encoder.vocab_size = static_cast<int32_t>(256 + control.size());
  return encoder;
}

inline std::vector<int32_t> Bytes(std::string_view text) { return ByteEncoder().encode(text); }

// A folder that goes with the test.
class DataTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / ("data_test_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Put(const std::string& name, std::string_view bytes) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    File file = File::Create(path.string());
    file.WriteAt(bytes.data(), bytes.size(), 0);
    return path.string();
  }

  std::filesystem::path folder_;
};

// Runs `action`, which must throw a UserError of the code whose one line holds the words.
template <typename Action>
void ExpectRefused(Action action, std::initializer_list<std::string> words,
                   ExitCode code = ExitCode::kUsage) {
  try {
    action();
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    const std::string line = error.what();
    EXPECT_EQ(error.code(), code) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    for (const std::string& word : words) {
      EXPECT_NE(line.find(word), std::string::npos) << "'" << word << "' is not in: " << line;
    }
  }
}

}  // namespace haversack
