// Typed access to the fields of a JSON object; every error names the file and the path of the
// field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace haversack {

class Fields {
 public:
  // `where` is the file and the object's path: "DIR/tokenizer.json: pre_tokenizer.". Throws
  // UserError if `value` is no object.
  Fields(const nlohmann::json& value, std::string where) : value_(value), where_(std::move(where)) {
    if (!value.is_object()) {
      throw UserError(ExitCode::kUsage, "{}: expected an object, got {}", Path(""),
                      value.type_name());
    }
  }

  // "DIR/tokenizer.json: pre_tokenizer.KEY"
  std::string Path(std::string_view key) const {
    std::string path = where_ + std::string(key);
    while (!path.empty() && (path.back() == '.' || path.back() == ' ' || path.back() == ':')) {
      path.pop_back();
    }
    return path;
  }

  // nullptr when the field is missing or null.
  const nlohmann::json* Find(std::string_view key) const {
    const auto found = value_.find(key);
    return found == value_.end() || found->is_null() ? nullptr : &*found;
  }
  const nlohmann::json& Require(std::string_view key) const {
    const nlohmann::json* found = Find(key);
    if (found == nullptr) Fail(key, "is missing");
    return *found;
  }

  std::optional<std::string> FindString(std::string_view key) const {
    const nlohmann::json* found = Find(key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_string()) Fail(key, fmt::format("must be a string, got {}", found->type_name()));
    return found->get<std::string>();
  }
  std::string String(std::string_view key) const {
    Require(key);
    return *FindString(key);
  }
  std::optional<bool> FindBool(std::string_view key) const {
    const nlohmann::json* found = Find(key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_boolean()) {
      Fail(key, fmt::format("must be true or false, got {}", found->type_name()));
    }
    return found->get<bool>();
  }
  bool Bool(std::string_view key) const {
    Require(key);
    return *FindBool(key);
  }
  // A count or an id: from 0 to 2^31 - 1.
  int32_t Integer(std::string_view key) const {
    const nlohmann::json& found = Require(key);
    if (!found.is_number_unsigned() || found.get<uint64_t>() > 0x7FFFFFFF) {
      Fail(key, fmt::format("must be a whole number from 0 on, got {}", found.dump()));
    }
    return found.get<int32_t>();
  }
  const nlohmann::json& Array(std::string_view key) const {
    const nlohmann::json& found = Require(key);
    if (!found.is_array()) Fail(key, fmt::format("must be a list, got {}", found.type_name()));
    return found;
  }
  Fields Object(std::string_view key) const { return {Require(key), Path(key) + "."}; }
  // The objects of a list.
  std::vector<Fields> Objects(std::string_view key) const {
    std::vector<Fields> objects;
    const nlohmann::json& list = Array(key);
    for (size_t i = 0; i < list.size(); ++i) {
      objects.emplace_back(list[i], fmt::format("{}[{}].", Path(key), i));
    }
    return objects;
  }

  [[noreturn]] void Fail(std::string_view key, const std::string& problem) const {
    throw UserError(ExitCode::kUsage, "{}: {}", Path(key), problem);
  }

  const nlohmann::json& value() const { return value_; }

 private:
  const nlohmann::json& value_;
  std::string where_;
};

}  // namespace haversack
