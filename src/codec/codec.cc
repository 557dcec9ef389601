#include "codec/codec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/threads.h"
#include "codec/format.h"
#include "kernels/row_blocks.h"

namespace haversack {
namespace {

constexpr int kDefaultGroup = 64;
constexpr int kGroups[] = {32, 64, 128};
constexpr int kMostOutliers = 65536;

std::optional<int> ParseNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

const CodecFormat* FindFormat(std::string_view name) {
  for (const CodecFormat* format : CodecFormats()) {
    if (format->name() == name) return format;
  }
  return nullptr;
}

// "bf16, int8, int4".
std::string KnownFormats() {
  std::vector<std::string_view> names;
  for (const CodecFormat* format : CodecFormats()) names.push_back(format->name());
  return fmt::format("{}", fmt::join(names, ", "));
}

// One "+..." of a codec's text, without the plus.
void ParseOption(std::string_view option, std::string_view text, std::string_view where,
                 CodecSpec* codec) {
  const std::optional<int> outliers =
      option.starts_with('o') ? ParseNumber(option.substr(1)) : std::nullopt;
  if (outliers && *outliers > 0 && *outliers <= kMostOutliers && codec->outliers == 0) {
    codec->outliers = *outliers;
  } else if (option == "sr" && !codec->stochastic) {
    codec->stochastic = true;
  } else {
    throw UserError(ExitCode::kUsage,
                    "{}: codec '{}': '+{}' is not an option; known, once each: +oN (N outlier "
                    "columns in bf16, 1 to {}), +sr (stochastic rounding)",
                    where, text, option, kMostOutliers);
  }
}

void CheckShape(const EncodedShape& shape, int64_t stride) {
  HAVERSACK_CHECK(shape.codec.format != nullptr, "no codec");
  HAVERSACK_CHECK(shape.rows >= 0 && shape.cols > 0 && stride >= shape.cols,
                  "[{}, {}] with stride {}", shape.rows, shape.cols, stride);
  HAVERSACK_CHECK(static_cast<int>(shape.outliers.size()) == shape.codec.outliers,
                  "{} outlier columns for {}", shape.outliers.size(), shape.codec.ToText());
  int32_t before = -1;
  for (const int32_t column : shape.outliers) {
    HAVERSACK_CHECK(column > before && column < shape.cols, "outlier column {} after {} of {}",
                    column, before, shape.cols);
    before = column;
  }
}

}  // namespace

std::span<const CodecFormat* const> CodecFormats() {
  static const std::array formats = {&Bf16Format(), &Int8Format(), &Int4Format()};
  return formats;
}

std::string CodecSpec::ToText() const {
  std::string text(format != nullptr ? format->name() : "none");
  if (group != 0 && group != kDefaultGroup) text += fmt::format("/{}", group);
  if (outliers != 0) text += fmt::format("+o{}", outliers);
  if (stochastic) text += "+sr";
  return text;
}

CodecSpec ParseCodec(std::string_view text, std::string_view where) {
  const size_t name_end = std::min(text.find_first_of("/+"), text.size());
  CodecSpec codec{.format = FindFormat(text.substr(0, name_end))};
  if (codec.format == nullptr) {
    throw UserError(ExitCode::kUsage, "{}: codec '{}' is unknown; known: {}", where, text,
                    KnownFormats());
  }
  if (!codec.format->grouped()) {
    if (name_end == text.size()) return codec;
    throw UserError(ExitCode::kUsage, "{}: codec '{}': {} takes no options", where, text,
                    codec.format->name());
  }
  codec.group = kDefaultGroup;
  std::string_view rest = text.substr(name_end);
  if (rest.starts_with('/')) {
    const std::string_view group = rest.substr(1, rest.find('+') - 1);
    codec.group = ParseNumber(group).value_or(0);
    if (std::ranges::find(kGroups, codec.group) == std::end(kGroups)) {
      throw UserError(ExitCode::kUsage, "{}: codec '{}': group size '{}'; known: {}", where, text,
                      group, fmt::join(kGroups, ", "));
    }
    rest.remove_prefix(1 + group.size());
  }
  while (!rest.empty()) {
    const std::string_view option = rest.substr(1, rest.find('+', 1) - 1);
    ParseOption(option, text, where, &codec);
    rest.remove_prefix(1 + option.size());
  }
  return codec;
}

size_t EncodedBytes(const CodecSpec& codec, int64_t rows, int64_t cols) {
  HAVERSACK_CHECK(codec.format != nullptr, "no codec");
  return codec.format->EncodedBytes(codec, rows, cols);
}

void Encode(const EncodedShape& shape, const float* x, int64_t stride, const RandomKey& key,
            std::byte* out) {
  CheckShape(shape, stride);
  ParallelFor(shape.rows, RowGrain(shape.cols), [&](int64_t begin, int64_t end) {
    shape.codec.format->EncodeRows(shape, begin, end, x + begin * stride, stride, {.key = key},
                                   out);
  });
}

void Decode(const EncodedShape& shape, const std::byte* in, float* x, int64_t stride) {
  CheckShape(shape, stride);
  ParallelFor(shape.rows, RowGrain(shape.cols), [&](int64_t begin, int64_t end) {
    shape.codec.format->DecodeRows(shape, in, begin, end, x + begin * stride, stride);
  });
}

void DecodeRows(const EncodedShape& shape, const std::byte* in, int64_t begin, int64_t end,
                float* x, int64_t stride) {
  shape.codec.format->DecodeRows(shape, in, begin, end, x, stride);
}

}  // namespace haversack
