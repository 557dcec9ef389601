#include "data/chat_style.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace haversack {
namespace {

void ReplaceAll(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// One spelling for the many of equal templates: message['role'] and message.role, both quotes, any
// spacing.
std::string Normalised(std::string_view chat_template) {
  std::string text(chat_template);
  std::replace(text.begin(), text.end(), '"', '\'');
  ReplaceAll(text, "['role']", ".role");
  ReplaceAll(text, "['content']", ".content");
  ReplaceAll(text, "'\n'", "'\\n'");
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; });
  return text;
}

// The literal that begins at `text` up to <|im_end|>, its escapes undone; nothing if the literal
// ends before, because then a variable follows.
std::optional<std::string> LiteralUpToEnd(std::string_view text, char quote) {
  std::string result;
  for (size_t i = 0; i < text.size() && text[i] != quote; ++i) {
    if (text.substr(i).starts_with("<|im_end|>")) return result;
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      result += text[i] == 'n' ? '\n' : text[i];
    } else {
      result += text[i];
    }
  }
  return std::nullopt;
}

// The text of a system turn that the template spells out in one literal.
std::optional<std::string> DefaultSystem(std::string_view chat_template) {
  for (const std::string_view line_end : {"\\n", "\n"}) {
    const std::string start = "<|im_start|>system" + std::string(line_end);
    for (size_t at = chat_template.find(start); at != std::string_view::npos;
         at = chat_template.find(start, at + 1)) {
      const char quote = at == 0 ? '\'' : chat_template[at - 1];
      const auto text = LiteralUpToEnd(chat_template.substr(at + start.size()), quote);
      if (text) return text;
    }
  }
  return std::nullopt;
}

std::string ReadTemplate(const std::string& model_dir, std::string& where) {
  namespace fs = std::filesystem;
  std::error_code error;
  where = (fs::path(model_dir) / "chat_template.jinja").string();
  if (fs::exists(where, error)) return ReadWholeFile(where, 1u << 20);
  where = (fs::path(model_dir) / "tokenizer_config.json").string();
  if (!fs::exists(where, error)) return "";
  const nlohmann::json config = ParseJson(ReadWholeFile(where, 64u << 20), where);
  const auto found = config.is_object() ? config.find("chat_template") : config.end();
  if (found == config.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {  // several, by name
    for (const nlohmann::json& entry : *found) {
      if (entry.is_object() && entry.value("name", nlohmann::json()) == "default" &&
          entry.value("template", nlohmann::json()).is_string()) {
        return entry["template"].get<std::string>();
      }
    }
  }
  throw UserError(ExitCode::kUsage,
                  "{}: field 'chat_template' is neither a string nor a list with one "
                  "named 'default'",
                  where);
}

int32_t MarkerId(const Encoder& encoder, const char* marker, const std::string& where) {
  const std::optional<int32_t> id = encoder.token_id(marker);
  if (!id) {
    throw UserError(
        ExitCode::kUsage,
        "{}: field 'messages': the tokenizer has no token '{}', so conversations cannot be "
        "written; use 'prompt' and 'completion'",
        where, marker);
  }
  return *id;
}

std::string Stripped(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) text.remove_prefix(1);
  while (right && text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text);
}

// Qwen3 takes reasoning out of the content where it is written there.
void SplitReasoning(ChatTurn& turn) {
  static constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  if (!turn.reasoning.empty() || turn.content.find(kClose) == std::string::npos) return;
  std::string before = Stripped(turn.content.substr(0, turn.content.find(kClose)), false, true);
  if (const size_t open = before.rfind(kOpen); open != std::string::npos) {
    before.erase(0, open + kOpen.size());
  }
  turn.reasoning = Stripped(before, true, false);
  turn.content =
      Stripped(turn.content.substr(turn.content.rfind(kClose) + kClose.size()), true, false);
}

class ChatWriter {
 public:
  ChatWriter(const Encoder& encoder, const std::string& where)
      : encoder_(encoder),
        start_(MarkerId(encoder, "<|im_start|>", where)),
        end_(MarkerId(encoder, "<|im_end|>", where)),
        line_feed_(encoder.encode_ordinary("\n")) {}

  void Turn(const std::string& role, const std::string& content, bool learn) {
    out_.Add(start_, false);
    HeaderAndBody(role + "\n", content, learn);
    End(learn);
  }

  // An answer behind its reasoning; empty reasoning is part of the prompt when thinking is off, and
  // so not learned.
  void ThinkingTurn(const ChatTurn& turn, const std::string& where) {
    const int32_t open = MarkerId(encoder_, "<think>", where);
    const int32_t close = MarkerId(encoder_, "</think>", where);
    const std::string reasoning = Stripped(turn.reasoning, true, true);
    const bool learn = !reasoning.empty();
    out_.Add(start_, false);
    out_.Add(encoder_.encode_ordinary("assistant\n"), false);
    out_.Add(open, learn);
    out_.Add(encoder_.encode_ordinary("\n" + reasoning + "\n"), learn);
    out_.Add(close, learn);
    const std::string content = Stripped(turn.content, true, false);
    if (learn) {
      out_.Add(encoder_.encode_ordinary("\n\n" + content), true);
    } else {
      HeaderAndBody("\n\n", content, true);
    }
    End(true);
  }

  MarkedTokens Take() { return std::move(out_); }

 private:
  void HeaderAndBody(const std::string& header, const std::string& body, bool learn) {
    const std::vector<int32_t> head = encoder_.encode_ordinary(header);
    const std::vector<int32_t> whole = encoder_.encode_ordinary(header + body);
    const bool prefix =
        head.size() <= whole.size() && std::equal(head.begin(), head.end(), whole.begin());
    if (!learn) {
      out_.Add(whole, false);
    } else if (prefix) {
      out_.Add(head, false);
      out_.Add({whole.begin() + static_cast<ptrdiff_t>(head.size()), whole.end()}, true);
    } else {
      out_.Add(head, false);
      out_.Add(encoder_.encode_ordinary(body), true);
    }
  }

  void End(bool learn) {
    out_.Add(end_, learn);
    out_.Add(line_feed_, false);
  }

  const Encoder& encoder_;
  int32_t start_, end_;
  std::vector<int32_t> line_feed_;
  MarkedTokens out_;
};

}  // namespace

void MarkedTokens::Add(const std::vector<int32_t>& ids, bool learn) {
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  learned.insert(learned.end(), ids.size(), learn);
}

void MarkedTokens::Add(int32_t id, bool learn) {
  tokens.push_back(id);
  learned.push_back(learn);
}

ChatStyle RecogniseChatTemplate(std::string_view chat_template, const std::string& where) {
  const std::string text = Normalised(chat_template);
  const auto has = [&text](std::string_view part) { return text.find(part) != std::string::npos; };
  const std::string turn = "'<|im_start|>'+message.role+'\\n'+";
  ChatStyle style;
  if (has(turn + "message.content+'<|im_end|>'") && !has("<think>")) {
    style.default_system = DefaultSystem(chat_template);
  } else if (has(turn + "content+'<|im_end|>'") && !has("<think>")) {
    style.default_system = DefaultSystem(chat_template);
  } else if (has("'<|im_start|>'+message.role+'\\n<think>\\n'+reasoning_content.strip('\\n')+"
                 "'\\n</think>\\n\\n'+content.lstrip('\\n')")) {
    style.thinking = true;
  } else {
    style.problem = fmt::format(
        "{}: the chat template ('{}') is none of the known ones (ChatML as in SmolLM2, Qwen2 and "
        "Qwen3); use 'prompt' and 'completion'",
        where, OneLine(chat_template, 60));
  }
  return style;
}

ChatStyle LoadChatStyle(const std::string& model_dir) {
  std::string where;
  const std::string chat_template = ReadTemplate(model_dir, where);
  return chat_template.empty() ? ChatStyle{} : RecogniseChatTemplate(chat_template, where);
}

MarkedTokens EncodeChat(const ChatStyle& style, const std::vector<ChatTurn>& turns,
                        const Encoder& encoder, const std::string& where) {
  if (!style.problem.empty()) {
    throw UserError(ExitCode::kUsage, "{}: field 'messages': {}", where, style.problem);
  }
  ChatWriter writer(encoder, where);
  if (style.default_system && (turns.empty() || turns[0].role != "system")) {
    writer.Turn("system", *style.default_system, false);
  }
  size_t last_question = turns.size();  // none: no turn lies behind it
  for (size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role == "user") last_question = i;
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    ChatTurn turn = turns[i];
    const bool answer = turn.role == "assistant";
    if (answer && style.thinking) SplitReasoning(turn);
    const bool last = i + 1 == turns.size();
    if (answer && style.thinking && i > last_question && (last || !turn.reasoning.empty())) {
      writer.ThinkingTurn(turn, where);
    } else {
      writer.Turn(turn.role, turn.content, answer);
    }
  }
  return writer.Take();
}

}  // namespace haversack
