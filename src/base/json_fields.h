// Fields of a JSON object, with errors that name file and field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace haversack {

// Fields of a JSON object. A field that is present but null counts as missing, as in Hugging Face's
// configuration files.
class JsonFields {
 public:
  // `where` names the object in messages: "DIR/config.json".
  JsonFields(const nlohmann::json& object, std::string where);

  bool Has(const std::string& key) const { return Find(key) != nullptr; }
  // The sub-object at `key`; empty when missing.
  JsonFields Sub(const std::string& key) const;

  template <typename T>
  std::optional<T> Optional(const std::string& key) const {
    const nlohmann::json* field = Find(key);
    if (field == nullptr) return std::nullopt;
    return Convert<T>(*field, key);
  }
  template <typename T>
  T Get(const std::string& key, T fallback) const {
    return Optional<T>(key).value_or(std::move(fallback));
  }
  template <typename T>
  T Required(const std::string& key) const {
    std::optional<T> value = Optional<T>(key);
    if (!value) throw UserError(ExitCode::kUsage, "{}: field '{}' is missing", where_, key);
    return *value;
  }
  // A size: an integer of at least `least`.
  int64_t RequiredSize(const std::string& key, int64_t least = 1) const;
  int64_t Size(const std::string& key, int64_t fallback, int64_t least = 1) const;

  const std::string& where() const { return where_; }
  const nlohmann::json& json() const { return *object_; }

 private:
  const nlohmann::json* Find(const std::string& key) const;
  template <typename T>
  T Convert(const nlohmann::json& field, const std::string& key) const;
  [[noreturn]] void WrongType(const nlohmann::json& field, const std::string& key,
                              const char* expected) const;

  const nlohmann::json* object_;
  std::string where_;
};

template <>
bool JsonFields::Convert<bool>(const nlohmann::json& field, const std::string& key) const;
template <>
int64_t JsonFields::Convert<int64_t>(const nlohmann::json& field, const std::string& key) const;
template <>
double JsonFields::Convert<double>(const nlohmann::json& field, const std::string& key) const;
template <>
std::string JsonFields::Convert<std::string>(const nlohmann::json& field,
                                             const std::string& key) const;

}  // namespace haversack
