#include "tokenizer/normalizer.h"

#include "base/error.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

bool ApplyStep(const Normalizer::Prepend& step, std::string_view text, std::string* out) {
  if (text.empty()) return false;
  *out = step.text;
  *out += text;
  return true;
}

bool ApplyStep(const Normalizer::Replace& step, std::string_view text, std::string* out) {
  out->clear();
  size_t last = 0;
  bool found = false;
  step.pattern.ForEachMatch(text, [&](size_t start, size_t end) {
    out->append(text, last, start - last);
    *out += step.content;
    last = end;
    found = true;
  });
  out->append(text, last);
  return found;
}

bool ApplyStep(const Normalizer::UnicodeForm& step, std::string_view text, std::string* out) {
  bool ascii = true;
  for (const char c : text) ascii = ascii && (c & 0x80) == 0;
  if (ascii) return false;
  *out = NormalizeUnicode(text, step);
  return true;
}

bool ApplyStep(const Normalizer::Strip& step, std::string_view text, std::string* out) {
  size_t bytes;
  size_t begin = 0;
  size_t end = text.size();
  while (step.left && begin < end && IsSpace(CharAt(text, begin, &bytes))) begin += bytes;
  while (step.right && begin < end && IsSpace(CharAt(text, PreviousChar(text, end), &bytes))) {
    end -= bytes;
  }
  *out = text.substr(begin, end - begin);
  return true;
}

}  // namespace

Normalizer Normalizer::FromJson(const Fields& parent) {
  Normalizer normalizer;
  if (parent.Find("normalizer") != nullptr) normalizer.Read(parent.Object("normalizer"));
  return normalizer;
}

void Normalizer::Read(const Fields& fields) {
  const std::string type = fields.String("type");
  if (type == "Sequence") {
    for (const Fields& step : fields.Objects("normalizers")) Read(step);
  } else if (type == "Prepend") {
    steps_.push_back(Prepend{.text = fields.String("prepend")});
  } else if (type == "Replace") {
    steps_.push_back(
        Replace{.pattern = Pattern::FromJson(fields), .content = fields.String("content")});
  } else if (type == "NFC" || type == "NFKC") {
    steps_.push_back(UnicodeForm{.compose = true, .compatibility = type == "NFKC"});
  } else if (type == "NFD" || type == "NFKD") {
    steps_.push_back(UnicodeForm{.compose = false, .compatibility = type == "NFKD"});
  } else if (type == "Strip") {
    steps_.push_back(Strip{.left = fields.Bool("strip_left"), .right = fields.Bool("strip_right")});
  } else {
    fields.Fail("type", fmt::format("the normalizer '{}' is not supported; supported are Sequence, "
                                    "Prepend, Replace, NFC, NFD, NFKC, NFKD, Strip",
                                    type));
  }
}

std::string_view Normalizer::Apply(std::string_view text, std::string* storage) const {
  std::string next;
  for (const Step& step : steps_) {
    if (std::visit([&](const auto& one) { return ApplyStep(one, text, &next); }, step)) {
      storage->swap(next);
      text = *storage;
    }
  }
  return text;
}

}  // namespace haversack
