#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "io/float_convert.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("safetensors_test_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A file of the header text and `data`, and its path.
  std::string Put(const std::string& header, const std::string& data) {
    std::string bytes(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    return PutBytes(bytes + header + data);
  }
  std::string PutBytes(const std::string& bytes) {
    const std::string path = (folder_ / "model.safetensors").string();
    File file = File::Create(path);
    file.WriteAt(bytes.data(), bytes.size(), 0);
    return path;
  }

  fs::path folder_;
};

std::string Refusal(const std::string& path) {
  try {
    SafetensorsFile::Open(path);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

void ExpectMentions(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
  }
}

TEST(FloatConvert, SixteenBitFormatsRoundTripAndRoundToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(F32FromF16(half))) {
      ASSERT_EQ(F16FromF32(F32FromF16(half)), half);
    } else {
      ASSERT_TRUE(std::isnan(F32FromF16(F16FromF32(F32FromF16(half)))));
    }
    if (!std::isnan(F32FromBf16(half))) {
      ASSERT_EQ(Bf16FromF32(F32FromBf16(half)), half);
    } else {
      ASSERT_TRUE(std::isnan(F32FromBf16(Bf16FromF32(F32FromBf16(half)))));
    }
  }
  // The neighbours of every value decide by distance, ties by the even significand.
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const uint16_t high = low + 1;
    const float middle = (F32FromF16(low) + F32FromF16(high)) / 2;  // exact in f32
    ASSERT_EQ(F16FromF32(middle), low % 2 == 0 ? low : high);
    ASSERT_EQ(F16FromF32(std::nextafter(middle, 0.0f)), low);
    ASSERT_EQ(F16FromF32(std::nextafter(middle, 1e9f)), high);
  }
  EXPECT_EQ(F16FromF32(65519.0f), 0x7bff);
  EXPECT_EQ(F16FromF32(65520.0f), 0x7c00);
  EXPECT_EQ(F16FromF32(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(Bf16FromF32(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(Bf16FromF32(1.00390625f), 0x3f80);  // half way: to even
  EXPECT_EQ(Bf16FromF32(1.01171875f), 0x3f82);
}

TEST_F(Safetensors, WhatIsWrittenIsReadBackInEveryType) {
  const int64_t rows = 300, columns = 1000;  // larger than the conversion buffer
  std::vector<float> values(rows * columns);
  const RandomStream random({.seed = 3});
  for (size_t i = 0; i < values.size(); ++i) values[i] = random.Normal(i);
  const std::string path = (folder_ / "out.safetensors").string();
  {
    SafetensorsWriter writer = SafetensorsWriter::Open(path, {{"f32", "F32", {rows, columns}},
                                                              {"bf16", "BF16", {rows, columns}},
                                                              {"f16", "F16", {rows, columns}},
                                                              {"none", "F32", {0, 7}},
                                                              {"scalar", "F32", {}}});
    writer.Write("f16", values.data());
    writer.Write("scalar", values.data());
    writer.Write("f32", values.data());
    writer.WriteRange("bf16", 1000, rows * columns - 1000, values.data() + 1000);
    writer.WriteRange("bf16", 0, 1000, values.data());
    writer.Finish();
  }
  const SafetensorsFile file = SafetensorsFile::Open(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().at("none").elements(), 0);
  EXPECT_EQ(file.tensors().at("scalar").elements(), 1);
  EXPECT_EQ(file.tensors().at("f32").shape, (std::vector<int64_t>{rows, columns}));
  EXPECT_EQ(file.tensors().at("bf16").begin % 2, 0u);
  std::vector<float> read(values.size());
  file.ReadAsF32(file.tensors().at("f32"), read.data());
  EXPECT_EQ(read, values);
  file.ReadAsF32(file.tensors().at("bf16"), read.data());
  for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(read[i], F32FromBf16(Bf16FromF32(values[i])));
  file.ReadRangeAsF32(file.tensors().at("f16"), 5 * columns, 6 * columns, read.data());
  for (size_t i = 0; i < size_t{columns}; ++i) {
    ASSERT_EQ(read[i], F32FromF16(F16FromF32(values[5 * columns + i])));
  }
  EXPECT_THROW(file.ReadRangeAsF32(file.tensors().at("f32"), 0, rows * columns + 1, read.data()),
               InternalError);
}

TEST_F(Safetensors, AnUnfinishedFileIsRemovedAndAMissingElementIsABug) {
  const std::string path = (folder_ / "out.safetensors").string();
  {
    SafetensorsWriter writer = SafetensorsWriter::Open(path, {{"a", "F32", {4}}});
    const float values[2] = {1, 2};
    writer.WriteRange("a", 0, 2, values);
    EXPECT_THROW(writer.Finish(), InternalError);
  }
  EXPECT_FALSE(fs::exists(path));
  try {
    SafetensorsWriter::Open("/nonexistent/folder/x", {{"a", "F32", {4}}});
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kDevice);
  }
}

TEST_F(Safetensors, TensorsWithoutElementsNeitherOverlapNorFail) {
  const std::string path =
      Put(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
          R"("s":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
          R"("extra.empty":{"dtype":"F32","shape":[0],"data_offsets":[12,12]},)"
          R"("extra.flat":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]}})",
          std::string(12, '\0'));
  const SafetensorsFile file = SafetensorsFile::Open(path);
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors().at("extra.flat").elements(), 0);
  file.ReadAsF32(file.tensors().at("extra.empty"), nullptr);
}

TEST_F(Safetensors, TypesThatWeightsDoNotHaveAreKeptAsTextAndNamedWhenRead) {
  const std::string path = Put(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                               R"("z":{"dtype":"NEW9","shape":[3],"data_offsets":[8,9]}})",
                               std::string(9, '\0'));
  const SafetensorsFile file = SafetensorsFile::Open(path);
  EXPECT_EQ(file.tensors().at("z").dtype, "NEW9");
  float out;
  try {
    file.ReadAsF32(file.tensors().at("i"), &out);
    ADD_FAILURE();
  } catch (const UserError& error) {
    ExpectMentions(error.what(), {"'i'", "I64", "BF16"});
  }
}

TEST_F(Safetensors, WrongHeadersAreRefusedByFileAndTensor) {
  const auto tensor = [](const std::string& fields) { return "{\"t\":{" + fields + "}}"; };
  const std::string eight(8, '\0');
  const std::vector<std::pair<std::string, std::initializer_list<const char*>>> cases = {
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,16])"), {"'t'", "cut off"}},
      {tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), {"'t'", "[3]", "8 bytes"}},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), {"4 bytes after"}},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), {"4 bytes before", "'t'"}},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), {"'t'", "no range"}},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), {"'t'", "data_offsets"}},
      {tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), {"'t'", "shape"}},
      {tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), {"'t'", "shape"}},
      {tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
       {"'t'", "4294967296"}},
      {tensor(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])"), {"'t'"}},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"), {"'t'"}},
      {tensor(R"("dtype":1,"shape":[2],"data_offsets":[0,8])"), {"'t'", "dtype"}},
      {tensor(R"("shape":[2],"data_offsets":[0,8])"), {"'t'", "'dtype'", "missing"}},
      {R"({"t":[1]})", {"'t'", "an array"}},
      {R"({"t\n":[1]})", {"t\\x0a"}},
      {R"({"__metadata__":{"a":1}})", {"__metadata__", "'a'"}},
      {R"({"__metadata__":3})", {"__metadata__"}},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       {"'a'", "'b'", "overlap"}},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       {"'a'", "twice"}},
      {R"({"a":)", {"not valid JSON"}},
      {R"({} {})", {"not valid JSON"}},
  };
  for (const auto& [header, words] : cases) {
    SCOPED_TRACE(header);
    ExpectMentions(Refusal(Put(header, eight)), words);
  }
}

TEST_F(Safetensors, FilesThatAreNoneAreNamedForWhatTheyAre) {
  ExpectMentions(Refusal(PutBytes("")), {"0 bytes"});
  ExpectMentions(Refusal(PutBytes("short")), {"5 bytes"});
  ExpectMentions(Refusal(PutBytes(std::string(100, 'x'))), {"no safetensors file"});
  ExpectMentions(Refusal(PutBytes(std::string(8, '\xff') + "{}")), {"no safetensors file"});
  ExpectMentions(Refusal(PutBytes(std::string(8, '\0') + "{}")), {"no safetensors file"});
  ExpectMentions(Refusal(PutBytes("version https://git-lfs.github.com/spec/v1\noid sha256:" +
                                  std::string(64, '0') + "\nsize 269060552\n")),
                 {"git-lfs pointer"});
  const std::string whole = R"({"t":{"dtype":"F32","shape":[20],"data_offsets":[0,80]}})";
  const std::string path = Put(whole, std::string(80, '\0'));
  const auto size = fs::file_size(path);
  for (uintmax_t cut = 0; cut < size; ++cut) {
    fs::resize_file(Put(whole, std::string(80, '\0')), cut);
    const std::string message = Refusal(path);
    if (cut >= 8 + whole.size()) ExpectMentions(message, {"'t'", "cut off"});
  }
}

TEST_F(Safetensors, AFlippedHeaderByteIsReadOrRefusedButNeverMore) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a.b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("c":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
      R"("d":{"dtype":"F16","shape":[0,4],"data_offsets":[32,32]}})";
  std::string clean(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(clean.data(), &length, 8);
  clean += header + std::string(32, '\x11');
  const RandomStream random({.seed = 11});
  int refused = 0;
  for (uint64_t trial = 0; trial < 2000; ++trial) {
    std::string bytes = clean;
    for (uint64_t flip = 0; flip <= random.Below(trial * 8, 2); ++flip) {
      const uint64_t where = random.Below(trial * 8 + 1 + flip, 8 + header.size());
      bytes[where] = static_cast<char>(random.Below(trial * 8 + 5 + flip, 256));
    }
    const std::string path = PutBytes(bytes);
    try {
      const SafetensorsFile file = SafetensorsFile::Open(path);
      for (const auto& [name, info] : file.tensors()) {
        std::vector<float> values(static_cast<size_t>(info.elements()));
        file.ReadAsF32(info, values.data());
      }
    } catch (const UserError& error) {
      ASSERT_EQ(error.code(), ExitCode::kUsage) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace haversack
