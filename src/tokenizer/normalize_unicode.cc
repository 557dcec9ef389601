#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Characters of Unicode 9 to 15 with a decomposition or a combining class, which the reference does
// not know; and U+11930, whose composition with U+11935 came with them.
constexpr Range kLaterCharacters[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
    {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool IsInert(char32_t c) {
  const auto* after =
      std::upper_bound(std::begin(kLaterCharacters), std::end(kLaterCharacters), c,
                       [](char32_t value, const Range& r) { return value < r.first; });
  if (after != std::begin(kLaterCharacters) && c <= (after - 1)->last) return true;
  return IsNewCharacter(c);
}

// The normal form of one stretch without inert characters.
class Stretch {
 public:
  explicit Stretch(Normalizer::UnicodeForm form) : form_(form) {}

  void Add(char32_t c) {
    std::array<utf8proc_int32_t, 32> parts;
    int last_boundary = 0;
    const int options =
        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (form_.compatibility ? UTF8PROC_COMPAT : 0);
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                static_cast<utf8proc_option_t>(options), &last_boundary);
    HAVERSACK_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
                    "decomposition of U+{:04X}: {}", static_cast<uint32_t>(c), count);
    for (utf8proc_ssize_t i = 0; i < count; ++i) AddPart(parts[i]);
  }

  void Flush(std::string* out) {
    SortMarks();
    auto count = static_cast<utf8proc_ssize_t>(parts_.size());
    if (form_.compose && count > 0) {
      count = utf8proc_normalize_utf32(
          parts_.data(), count, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      HAVERSACK_CHECK(count >= 0, "composition failed with {}", count);
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      AppendChar(static_cast<char32_t>(parts_[i]), out);
    }
    parts_.clear();
    starters_ = 0;
  }

 private:
  static int CombiningClass(utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  }

  // parts_[starters_, end) are marks whose order is still open.
  void AddPart(utf8proc_int32_t part) {
    if (CombiningClass(part) == 0) {
      SortMarks();
      starters_ = parts_.size() + 1;
    }
    parts_.push_back(part);
  }
  void SortMarks() {
    if (parts_.size() - starters_ < 2) return;
    std::stable_sort(parts_.begin() + static_cast<ptrdiff_t>(starters_), parts_.end(),
                     [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
  }

  Normalizer::UnicodeForm form_;
  std::vector<utf8proc_int32_t> parts_;
  size_t starters_ = 0;
};

}  // namespace

std::string NormalizeUnicode(std::string_view text, Normalizer::UnicodeForm form) {
  // No form changes a character below `plain`, and none combines with what stands before it.
  const char32_t plain = form.compatibility ? 0x80 : form.compose ? 0x300 : 0xC0;
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  Stretch stretch(form);
  size_t bytes;
  for (size_t at = 0; at < text.size(); at += bytes) {
    const char32_t c = CharAt(text, at, &bytes);
    if (c >= plain && !IsInert(c)) {
      stretch.Add(c);
      continue;
    }
    stretch.Flush(&out);
    // A plain character may be the base of the next one.
    const bool last = at + bytes == text.size();
    size_t next_bytes;
    if (c < plain && !last && CharAt(text, at + bytes, &next_bytes) >= plain) {
      stretch.Add(c);
    } else {
      out.append(text, at, bytes);
    }
  }
  stretch.Flush(&out);
  return out;
}

}  // namespace haversack
