#include "tokenizer/decoder.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/bpe.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

using Tokens = std::vector<std::string>;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte of <0xHH>; -1 for any other token.
int ByteOf(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  // A sign before one digit counts for the reference's number parser.
  if (token[3] == '+') return HexDigit(token[4]);
  const int high = HexDigit(token[3]);
  const int low = HexDigit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

Tokens Apply(const Decoder::ByteLevel&, Tokens tokens, bool /*continues*/) {
  std::string bytes;
  for (const std::string& token : tokens) AppendTokenBytes(token, &bytes);
  return {ReplaceInvalid(bytes)};
}

Tokens Apply(const Decoder::Metaspace& step, Tokens tokens, bool continues) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool drop = i == 0 && !continues && step.drops_first;
    std::string text;
    size_t last = 0;
    for (size_t at; (at = tokens[i].find(step.replacement, last)) != std::string::npos;) {
      text.append(tokens[i], last, at - last);
      if (!drop) text += ' ';
      last = at + step.replacement.size();
    }
    tokens[i] = text.append(tokens[i], last);
  }
  return tokens;
}

Tokens Apply(const Decoder::Replace& step, Tokens tokens, bool /*continues*/) {
  for (std::string& token : tokens) {
    std::string text;
    size_t last = 0;
    step.pattern.ForEachMatch(token, [&](size_t start, size_t end) {
      text.append(token, last, start - last);
      text += step.content;
      last = end;
    });
    token = text.append(token, last);
  }
  return tokens;
}

// A run of byte tokens becomes its text, or, when it is no valid UTF-8, one U+FFFD a byte.
Tokens Apply(const Decoder::ByteFallback&, Tokens tokens, bool /*continues*/) {
  Tokens out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (FindInvalid(run) == run.size()) {
      out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), "\uFFFD");
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    const int byte = ByteOf(token);
    if (byte >= 0) {
      run.push_back(static_cast<char>(byte));
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  return out;
}

Tokens Apply(const Decoder::Fuse&, Tokens tokens, bool /*continues*/) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return {all};
}

std::string StripToken(const Decoder::Strip& step, std::string_view token, size_t start) {
  std::string content;
  AppendChar(step.content, &content);
  size_t begin = 0;
  size_t end = token.size();
  for (size_t i = 0; i < start && token.substr(begin).starts_with(content); ++i) {
    begin += content.size();
  }
  for (size_t i = 0; i < step.stop && token.substr(0, end).ends_with(content); ++i) {
    end -= content.size();
  }
  return begin < end ? std::string(token.substr(begin, end - begin)) : std::string();
}

Tokens Apply(const Decoder::Strip& step, Tokens tokens, bool continues) {
  for (std::string& token : tokens) token = StripToken(step, token, continues ? 0 : step.start);
  return tokens;
}

}  // namespace

void AppendTokenBytes(std::string_view token, std::string* out) {
  const size_t before = out->size();
  size_t bytes;
  for (size_t at = 0; at < token.size(); at += bytes) {
    const int byte = CharToByte(CharAt(token, at, &bytes));
    if (byte < 0) {
      out->resize(before);
      *out += token;
      return;
    }
    out->push_back(static_cast<char>(byte));
  }
}

Decoder Decoder::FromJson(const Fields& parent) {
  Decoder decoder;
  if (parent.Find("decoder") == nullptr) return decoder;
  decoder.present_ = true;
  decoder.Read(parent.Object("decoder"));
  return decoder;
}

void Decoder::Read(const Fields& fields) {
  const std::string type = fields.String("type");
  if (type == "Sequence") {
    for (const Fields& step : fields.Objects("decoders")) Read(step);
  } else if (type == "ByteLevel") {
    steps_.push_back(ByteLevel{});
  } else if (type == "Metaspace") {
    const MetaspaceConfig config = MetaspaceConfig::FromJson(fields);
    steps_.push_back(Metaspace{.replacement = config.replacement,
                               .drops_first = config.scheme != PrependScheme::kNever});
  } else if (type == "Replace") {
    steps_.push_back(
        Replace{.pattern = Pattern::FromJson(fields), .content = fields.String("content")});
  } else if (type == "ByteFallback") {
    steps_.push_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.push_back(Fuse{});
  } else if (type == "Strip") {
    const std::string content = fields.String("content");
    if (content.empty() || CharBytes(static_cast<unsigned char>(content[0])) != content.size()) {
      fields.Fail("content", "must be one character");
    }
    size_t bytes;
    steps_.push_back(Strip{.content = CharAt(content, 0, &bytes),
                           .start = static_cast<size_t>(fields.Integer("start")),
                           .stop = static_cast<size_t>(fields.Integer("stop"))});
  } else {
    fields.Fail("type", fmt::format("the decoder '{}' is not supported; supported are Sequence, "
                                    "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip",
                                    type));
  }
}

std::string Decoder::Decode(std::vector<std::string> tokens, bool continues) const {
  std::string text;
  if (!present_) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 || continues) text += ' ';
      text += tokens[i];
    }
    return text;
  }
  bool fused = false;
  for (const Step& step : steps_) {
    // Before the tokens are fused, Strip works on each of them.
    const bool each = std::holds_alternative<Strip>(step) && !fused;
    tokens = std::visit(
        [&](const auto& one) { return Apply(one, std::move(tokens), continues && !each); }, step);
    fused = fused || std::holds_alternative<Fuse>(step) || std::holds_alternative<ByteLevel>(step);
  }
  for (const std::string& token : tokens) text += token;
  return text;
}

Decoder::Streaming Decoder::streaming() const {
  if (present_ && steps_.size() == 1 && std::holds_alternative<ByteLevel>(steps_[0])) {
    return Streaming::kBytes;
  }
  bool fused = false;
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) return Streaming::kWhole;
    if (fused) {
      const auto* strip = std::get_if<Strip>(&step);
      const bool streams = std::holds_alternative<Fuse>(step) || (strip && strip->stop == 0);
      if (!streams) return Streaming::kWhole;
    }
    fused = fused || std::holds_alternative<Fuse>(step);
  }
  return Streaming::kTokens;
}

bool Decoder::IsByteToken(std::string_view token) const {
  const bool known = std::ranges::any_of(
      steps_, [](const Step& step) { return std::holds_alternative<ByteFallback>(step); });
  return known && ByteOf(token) >= 0;
}

}  // namespace haversack
