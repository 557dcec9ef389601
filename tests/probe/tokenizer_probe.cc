// Test tool: everything a Tokenizer says about some texts, for comparison with an independent one.
//   tokenizer_probe MODEL_DIR REQUEST.json
// REQUEST: a list of texts, each the hexadecimal digits of its bytes. Each gets one JSON line with
// the ids of Encode ("ids"; "framed" with special tokens added) and of EncodeOrdinary ("ordinary"),
// the decoded text ("text"; "plain" without special tokens; "streamed" token by token), and SafeCut
// ("cut").
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "tokenizer/tokenizer.h"

namespace haversack {
namespace {

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder stream(tokenizer, /*skip_special_tokens=*/true);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Flush();
}

int Run(const std::string& model_dir, const std::string& request) {
  const Tokenizer tokenizer = Tokenizer::Load(model_dir);
  for (const nlohmann::json& hex : nlohmann::json::parse(ReadWholeFile(request))) {
    const std::string text = FromHex(hex.get<std::string>());
    const std::vector<int32_t> ids = tokenizer.Encode(text);
    const nlohmann::json answer = {{"ids", ids},
                                   {"framed", tokenizer.Encode(text, /*add_special_tokens=*/true)},
                                   {"ordinary", tokenizer.EncodeOrdinary(text)},
                                   {"text", tokenizer.Decode(ids, /*skip_special_tokens=*/false)},
                                   {"plain", tokenizer.Decode(ids, /*skip_special_tokens=*/true)},
                                   {"streamed", Streamed(tokenizer, ids)},
                                   {"cut", tokenizer.SafeCut(text)}};
    std::puts(answer.dump().c_str());
  }
  return 0;
}

}  // namespace
}  // namespace haversack

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    return haversack::Run(argv[1], argv[2]);
  } catch (const haversack::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
