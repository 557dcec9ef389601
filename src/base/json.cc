#include "base/json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"

namespace haversack {
namespace {

// What Python's json module writes for numbers that JSON cannot hold, where parsing `text` ended
// inside one at byte `end` (counted from 1); empty elsewhere.
std::string_view PythonNumber(std::string_view text, size_t end) {
  for (const std::string_view literal : {"-Infinity", "Infinity", "NaN"}) {
    const size_t longest = std::min(end, literal.size());
    for (size_t read = 1; read <= longest; ++read) {
      if (text.substr(end - read, literal.size()) == literal) return literal;
    }
  }
  return {};
}

UserError NotJson(const std::string& where, const nlohmann::json::exception& error) {
  std::string reason = error.what();
  // Without nlohmann's "[json.exception...]".
  if (const size_t tag = reason.find("] "); reason.starts_with("[") && tag != std::string::npos) {
    reason.erase(0, tag + 2);
  }
  return UserError(ExitCode::kUsage, "{}: not valid JSON: {}", where, OneLine(reason, 240));
}

}  // namespace

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
  } catch (const nlohmann::json::parse_error& error) {
    const std::string_view literal = PythonNumber(text, error.byte);
    if (!literal.empty()) {
      const std::string_view before = text.substr(0, error.byte);
      throw UserError(ExitCode::kUsage,
                      "{}: line {}: {} is not valid JSON; write a number or null in its place",
                      where, 1 + std::count(before.begin(), before.end(), '\n'), literal);
    }
    throw NotJson(where, error);
  } catch (const nlohmann::json::exception& error) {
    throw NotJson(where, error);
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
