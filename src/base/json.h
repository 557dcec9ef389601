// JSON as the formats here need it: strict, a key at most once an object, errors on one line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace haversack {

// The value in `text`. Anything else than one JSON value, or a key given twice, is a UserError
// (exit 2) that begins with `where` ("FILE", "FILE:LINE").
nlohmann::json ParseJson(std::string_view text, const std::string& where);

// "an object", "a string", "null": for messages about a field of the wrong type.
std::string JsonTypeName(const nlohmann::json& value);

// `text` fit for a one-line message: control bytes as \xNN, at most `limit` bytes.
std::string OneLine(std::string_view text, size_t limit = 120);

}  // namespace haversack
