#include "base/json.h"

#include <set>
#include <vector>

#include "base/error.h"

namespace haversack {

nlohmann::json ParseJson(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys;  // of each open object
  const auto refuse_duplicates = [&](int, nlohmann::json::parse_event_t event,
                                     nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw UserError(ExitCode::kUsage, "{}: field '{}' is given twice in one object", where,
                      OneLine(parsed.get_ref<const std::string&>()));
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), refuse_duplicates);
  } catch (const nlohmann::json::exception& error) {
    std::string reason = error.what();
    if (const size_t tag = reason.find("] "); reason.starts_with("[") && tag != std::string::npos) {
      reason.erase(0, tag + 2);
    }
    throw UserError(ExitCode::kUsage, "{}: not valid JSON: {}", where, OneLine(reason, 240));
  }
}

std::string JsonTypeName(const nlohmann::json& value) {
  if (value.is_null()) return "null";
  const std::string name = value.type_name();
  return (name == "object" || name == "array" ? "an " : "a ") + name;
}

std::string OneLine(std::string_view text, size_t limit) {
  std::string line;
  for (const char c : text) {
    if (line.size() >= limit) return line + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace haversack
