#include "base/json_fields.h"

#include <cmath>

namespace haversack {

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
