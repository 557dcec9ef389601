#include "cli/tokenize.h"

#include <cerrno>
#include <fstream>
#include <string>

#include "base/error.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "tokenizer/tokenizer.h"

namespace haversack {

namespace {

void Print(const std::vector<int32_t>& ids, std::FILE* out) {
  std::string line = "[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) line += ", ";
    fmt::format_to(std::back_inserter(line), "{}", ids[i]);
  }
  line += "]\n";
  if (std::fwrite(line.data(), 1, line.size(), out) != line.size()) {
    throw FileError("write", "the token ids", errno);
  }
}

}  // namespace

void Tokenize(const std::filesystem::path& model_dir, const std::filesystem::path& file,
              std::FILE* out) {
  const Tokenizer tokenizer = Tokenizer::Load(model_dir);
  if (std::filesystem::is_directory(file)) {
    throw UserError(ExitCode::kUsage, "{}: is a directory; name a text file", file.string());
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    if (errno == ENOENT) {
      throw UserError(ExitCode::kUsage, "{}: there is no such file", file.string());
    }
    throw FileError("read", file.string(), errno);
  }
  std::string line;
  for (int64_t number = 1; std::getline(in, line, '\n'); ++number) {
    std::vector<int32_t> ids;
    try {
      ids = tokenizer.Encode(line);
    } catch (const UserError& error) {
      throw UserError(error.code(), "{}:{}: {}", file.string(), number, error.what());
    }
    Print(ids, out);
  }
  if (in.bad()) throw FileError("read", file.string(), errno);
  if (std::fflush(out) != 0) throw FileError("write", "the token ids", errno);
}

ExitCode TokenizeCommand(int argc, const char* const* argv) {
  std::string model, file;
  Flags flags("tokenize", "Prints one JSON array of token ids for each line of FILE.");
  flags.app()
      .add_option("--model", model, "directory with tokenizer.json")
      ->required()
      ->type_name("DIR");
  flags.app().add_option("FILE", file, "text; lines end at \\n only")->required();
  if (!flags.Parse(argc, argv)) return ExitCode::kOk;
  Tokenize(model, file, stdout);
  return ExitCode::kOk;
}

}  // namespace haversack
