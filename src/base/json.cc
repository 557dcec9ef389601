#include "base/json.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

namespace haversack {

std::string ReadTextFile(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) throw FileError("read", path, errno);
  std::string text;
  char buffer[65536];
  size_t got = 0;
  while ((got = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) text.append(buffer, got);
  if (std::ferror(file.get()) != 0) throw FileError("read", path, errno);
  return text;
}

nlohmann::json ParseJson(std::string_view text, const std::string& where) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const size_t at = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(at), '\n');
    // The offending word: from the last separator before the fault.
    size_t begin = at == 0 ? 0 : text.find_last_of(" \t\n,:[{", at - 1);
    begin = begin == std::string_view::npos ? 0 : begin + (at == 0 ? 0 : 1);
    const size_t end = std::min(text.find_first_of(",]}\n", begin), begin + 40);
    throw UserError(ExitCode::kUsage, "{}:{}: not valid JSON at '{}'", where, line,
                    text.substr(begin, end - begin));
  }
}

nlohmann::json ParseJsonFile(const std::filesystem::path& path) {
  return ParseJson(ReadTextFile(path), path.string());
}

JsonFields::JsonFields(const nlohmann::json& object, std::string where)
    : object_(&object), where_(std::move(where)) {
  if (!object.is_object()) {
    throw UserError(ExitCode::kUsage, "{}: expected a JSON object, found {}", where_,
                    object.type_name());
  }
}

JsonFields JsonFields::Sub(const std::string& key) const {
  static const nlohmann::json empty = nlohmann::json::object();
  const nlohmann::json* field = Find(key);
  return JsonFields(field == nullptr ? empty : *field, where_ + ": " + key);
}

int64_t JsonFields::RequiredSize(const std::string& key, int64_t least) const {
  const auto value = Required<int64_t>(key);
  if (value < least) {
    throw UserError(ExitCode::kUsage, "{}: field '{}' is {}; it must be at least {}", where_, key,
                    value, least);
  }
  return value;
}

int64_t JsonFields::Size(const std::string& key, int64_t fallback, int64_t least) const {
  return Has(key) ? RequiredSize(key, least) : fallback;
}

const nlohmann::json* JsonFields::Find(const std::string& key) const {
  const auto field = object_->find(key);
  if (field == object_->end() || field->is_null()) return nullptr;
  return &*field;
}

void JsonFields::WrongType(const nlohmann::json& field, const std::string& key,
                           const char* expected) const {
  throw UserError(ExitCode::kUsage, "{}: field '{}' is {}; expected {}", where_, key, field.dump(),
                  expected);
}

template <>
bool JsonFields::Convert<bool>(const nlohmann::json& field, const std::string& key) const {
  if (!field.is_boolean()) WrongType(field, key, "true or false");
  return field.get<bool>();
}

template <>
int64_t JsonFields::Convert<int64_t>(const nlohmann::json& field, const std::string& key) const {
  if (field.is_number_float()) {
    const auto value = field.get<double>();
    if (value == std::floor(value) && std::abs(value) < 9e15) return static_cast<int64_t>(value);
  }
  if (!field.is_number_integer()) WrongType(field, key, "an integer");
  return field.get<int64_t>();
}

template <>
double JsonFields::Convert<double>(const nlohmann::json& field, const std::string& key) const {
  if (!field.is_number()) WrongType(field, key, "a number");
  return field.get<double>();
}

template <>
std::string JsonFields::Convert<std::string>(const nlohmann::json& field,
                                             const std::string& key) const {
  if (!field.is_string()) WrongType(field, key, "a string");
  return field.get<std::string>();
}

}  // namespace haversack
