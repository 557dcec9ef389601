#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

const Pattern& Gpt2() {
  static const Pattern pattern = Pattern::Gpt2();
  return pattern;
}

// Whether the first character of the normal form still counts as the beginning of the input.
bool KeepsStart(const Normalizer::Step& step) {
  if (const auto* replace = std::get_if<Normalizer::Replace>(&step)) {
    const std::string& literal = replace->pattern.literal();
    return !literal.empty() &&
           CharBytes(static_cast<unsigned char>(literal[0])) == literal.size() &&
           !replace->content.empty();
  }
  return std::holds_alternative<Normalizer::UnicodeForm>(step);
}

}  // namespace

MetaspaceConfig MetaspaceConfig::FromJson(const Fields& fields) {
  MetaspaceConfig config;
  config.replacement = fields.String("replacement");
  if (config.replacement.empty() ||
      CharBytes(static_cast<unsigned char>(config.replacement[0])) != config.replacement.size()) {
    fields.Fail("replacement", "must be one character");
  }
  const auto scheme = fields.FindString("prepend_scheme");
  if (scheme == "first") {
    config.scheme = PrependScheme::kFirst;
  } else if (scheme == "never") {
    config.scheme = PrependScheme::kNever;
  } else if (scheme && scheme != "always") {
    fields.Fail("prepend_scheme",
                fmt::format("'{}' is unknown; it is one of always, first, never", *scheme));
  }
  // The old spelling.
  if (fields.FindBool("add_prefix_space") == false) {
    if (scheme && config.scheme != PrependScheme::kNever) {
      fields.Fail("add_prefix_space",
                  fmt::format("false contradicts prepend_scheme '{}'", *scheme));
    }
    config.scheme = PrependScheme::kNever;
  }
  config.split = fields.FindBool("split").value_or(true);
  return config;
}

PreTokenizer PreTokenizer::FromJson(const Fields& parent, const Normalizer& normalizer) {
  PreTokenizer pre_tokenizer;
  if (parent.Find("pre_tokenizer") == nullptr) return pre_tokenizer;
  pre_tokenizer.Read(parent.Object("pre_tokenizer"),
                     std::ranges::all_of(normalizer.steps(), KeepsStart));
  return pre_tokenizer;
}

void PreTokenizer::Read(const Fields& fields, bool keeps_start) {
  const std::string type = fields.String("type");
  if (type == "Sequence") {
    for (const Fields& stage : fields.Objects("pretokenizers")) Read(stage, keeps_start);
  } else if (type == "Split") {
    stages_.push_back(Split{.pattern = Pattern::FromJson(fields),
                            .behavior = ParseSplitBehavior(fields, "behavior"),
                            .invert = fields.Bool("invert")});
  } else if (type == "Digits") {
    stages_.push_back(Split{.pattern = Pattern::Numeric(),
                            .behavior = fields.Bool("individual_digits")
                                            ? SplitBehavior::kIsolated
                                            : SplitBehavior::kContiguous,
                            .invert = false});
  } else if (type == "WhitespaceSplit") {
    stages_.push_back(
        Split{.pattern = Pattern::Space(), .behavior = SplitBehavior::kRemoved, .invert = false});
  } else if (type == "ByteLevel") {
    fields.Bool("trim_offsets");  // offsets are not computed
    stages_.push_back(ByteLevel{.add_prefix_space = fields.Bool("add_prefix_space"),
                                .use_regex = fields.FindBool("use_regex").value_or(true)});
  } else if (type == "Metaspace") {
    const MetaspaceConfig config = MetaspaceConfig::FromJson(fields);
    const bool unchanged = std::ranges::all_of(
        stages_, [](const Stage& stage) { return std::holds_alternative<Split>(stage); });
    if (config.scheme == PrependScheme::kFirst && !(keeps_start && unchanged)) {
      fields.Fail("prepend_scheme",
                  "'first' is not supported after steps that change the beginning of the text; use "
                  "'always' or 'never'");
    }
    stages_.push_back(
        Metaspace{.config = config, .replacement = Pattern::Literal(config.replacement)});
  } else {
    fields.Fail(
        "type",
        fmt::format("the pre-tokenizer '{}' is not supported; supported are Sequence, Split, "
                    "Digits, ByteLevel, Metaspace, WhitespaceSplit",
                    type));
  }
}

struct PreTokenizer::Call {
  const Bpe& bpe;
  Scratch* scratch;
  std::vector<int32_t>* out;
};

void PreTokenizer::Encode(std::string_view text, bool at_start, const Bpe& bpe, Scratch* scratch,
                          std::vector<int32_t>* out) const {
  scratch->texts.resize(stages_.size());
  Run(0, text, at_start, {.bpe = bpe, .scratch = scratch, .out = out});
}

// Stages work on one piece at a time, so each piece goes through all of them before the next one.
void PreTokenizer::Run(size_t stage, std::string_view text, bool at_start, const Call& call) const {
  if (stage == stages_.size()) {
    call.bpe.EncodeWord(text, &call.scratch->bpe, call.out);
    return;
  }
  std::visit([&](const auto& one) { Apply(one, stage, text, at_start, call); }, stages_[stage]);
}

void PreTokenizer::Apply(const Split& split, size_t stage, std::string_view text, bool at_start,
                         const Call& call) const {
  ForEachPiece(split.pattern, split.behavior, split.invert, text, [&](size_t begin, size_t end) {
    Run(stage + 1, text.substr(begin, end - begin), at_start && begin == 0, call);
  });
}

void PreTokenizer::Apply(const ByteLevel& byte_level, size_t stage, std::string_view text,
                         bool at_start, const Call& call) const {
  std::string prefixed;
  if (byte_level.add_prefix_space && text[0] != ' ') {
    prefixed = " ";
    prefixed += text;
    text = prefixed;
  }
  const auto word = [&](size_t begin, size_t end) {
    const std::string_view piece = text.substr(begin, end - begin);
    if (stage + 1 == stages_.size()) {
      call.bpe.EncodeBytes(piece, &call.scratch->bpe, call.out);
      return;
    }
    std::string& spelled = call.scratch->texts[stage];
    spelled.clear();
    AppendByteLevel(piece, &spelled);
    Run(stage + 1, spelled, at_start && begin == 0, call);
  };
  if (byte_level.use_regex) {
    ForEachPiece(Gpt2(), SplitBehavior::kIsolated, false, text, word);
  } else {
    word(0, text.size());
  }
}

void PreTokenizer::Apply(const Metaspace& metaspace, size_t stage, std::string_view text,
                         bool at_start, const Call& call) const {
  const std::string& replacement = metaspace.config.replacement;
  std::string& replaced = call.scratch->texts[stage];
  replaced.clear();
  const bool marked = text.starts_with(' ') || text.starts_with(replacement);
  const PrependScheme scheme = metaspace.config.scheme;
  if (!marked &&
      (scheme == PrependScheme::kAlways || (scheme == PrependScheme::kFirst && at_start))) {
    replaced = replacement;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t blank = std::min(text.find(' ', at), text.size());
    replaced.append(text, at, blank - at);
    if (blank < text.size()) replaced += replacement;
    at = blank + 1;
  }
  const auto word = [&](size_t begin, size_t end) {
    Run(stage + 1, std::string_view(replaced).substr(begin, end - begin), at_start && begin == 0,
        call);
  };
  if (metaspace.config.split) {
    ForEachPiece(metaspace.replacement, SplitBehavior::kMergedWithNext, false, replaced, word);
  } else {
    word(0, replaced.size());
  }
}

}  // namespace haversack
