#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/file_lock.h"
#include "base/json.h"

namespace haversack {
namespace {

ExitCode CodeOf(auto&& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.code();
  }
  return ExitCode::kOk;
}

TEST(File, WritesAreReadBackAndAShortReadIsAnError) {
  const std::string path = testing::TempDir() + "file_test_" + std::to_string(getpid());
  File file = File::Create(path);
  file.WriteAt("0123456789", 10, 5);
  file.Sync();
  EXPECT_EQ(file.Size(), 15u);
  char text[11] = {};
  file.ReadAt(text, 10, 5);
  EXPECT_STREQ(text, "0123456789");
  EXPECT_EQ(file.ReadUpTo(text, 10, 12), 3u);
  EXPECT_EQ(CodeOf([&] { file.ReadAt(text, 10, 12); }), ExitCode::kUsage);
  file.Close();
  EXPECT_EQ(ReadWholeFile(path).size(), 15u);
  EXPECT_EQ(CodeOf([&] { ReadWholeFile(path, 14); }), ExitCode::kUsage);
  std::filesystem::remove(path);
}

TEST(File, AMissingFileIsUsageAndAFailingDeviceIsNot) {
  EXPECT_EQ(CodeOf([] { File::Open("/nonexistent/file"); }), ExitCode::kUsage);
  EXPECT_EQ(CodeOf([] { File::Open(testing::TempDir()); }), ExitCode::kUsage);
  EXPECT_EQ(CodeOf([] { File::Create("/nonexistent/file"); }), ExitCode::kDevice);
  EXPECT_EQ(CodeOf([] {
              File full = File::Create("/dev/full");
              full.WriteAt("x", 1, 0);
            }),
            ExitCode::kDevice);
}

TEST(Json, RefusesDuplicatesRestsAndWhatIsNotJson) {
  EXPECT_EQ(ParseJson(R"({"a":{"x":1},"b":{"x":2}})", "f").size(), 2u);
  for (const char* bad : {R"({"a":1,"a":2})", R"([{"b":{"c":1,"c":1}}])", R"({"a":1} x)", R"({"a")",
                          "", R"({"a":Infinity})", "{\"a\":\"\xff\"}", R"({"a":1e999})"}) {
    try {
      ParseJson(bad, "name:7");
      ADD_FAILURE() << bad;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_TRUE(std::string(error.what()).starts_with("name:7: ")) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_EQ(OneLine("a\nb\x01"), "a\\x0ab\\x01");
}

TEST(File, ReplacesInOneGoAndLeavesNoTemporaryFile) {
  const std::string folder = testing::TempDir() + "/haversack-replace";
  std::filesystem::create_directories(folder);
  ReplaceFile(folder + "/a", "a longer first content");
  ReplaceFile(folder + "/a", "second");
  EXPECT_EQ(ReadWholeFile(folder + "/a"), "second");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST(File, UpdatesInPlaceAndCutsOff) {
  const std::string path = testing::TempDir() + "/haversack-update";
  ReplaceFile(path, "0123456789");
  File file = File::Update(path);
  file.Truncate(4);
  file.WriteAt("ab", 2, 4);
  EXPECT_EQ(ReadWholeFile(path), "0123ab");
  std::filesystem::remove(path);
}

TEST(File, AFullDiskSaysHowMuchWasToBeWritten) {
  File file = File::Update("/dev/full");
  try {
    file.WriteAt("1234", 4, 0);
    FAIL() << "written";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kDevice);
    EXPECT_NE(std::string(error.what()).find("cannot write 4 B to /dev/full"), std::string::npos)
        << error.what();
  }
}

TEST(FileLock, IsHeldUntilItsOwnerGoes) {
  const std::string path = testing::TempDir() + "/haversack-lock";
  {
    FileLock first, second;
    EXPECT_EQ(first.TryAcquire(path), 0);
    EXPECT_EQ(second.TryAcquire(path), EWOULDBLOCK);
  }
  FileLock third;
  EXPECT_EQ(third.TryAcquire(path), 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace haversack
