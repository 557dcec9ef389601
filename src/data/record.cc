#include "data/record.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace haversack {
namespace {

constexpr size_t kEncodePiece = 1 << 20;

[[noreturn]] void WrongType(const std::string& where, const std::string& field,
                            const nlohmann::json& value, const char* needed) {
  throw UserError(ExitCode::kUsage, "{}: field '{}' is {}; it must be {}", where, field,
                  JsonTypeName(value), needed);
}

const std::string& Text(const nlohmann::json& object, const std::string& where,
                        const std::string& key, const std::string& field) {
  const auto found = object.find(key);
  if (found == object.end()) {
    throw UserError(ExitCode::kUsage, "{}: field '{}' is missing", where, field);
  }
  if (!found->is_string()) WrongType(where, field, *found, "a string");
  return found->get_ref<const std::string&>();
}

// A message's content: a string, or a list of text parts, which are joined.
std::string Content(const nlohmann::json& message, const std::string& where,
                    const std::string& field) {
  const auto found = message.find("content");
  if (found == message.end() || !found->is_array()) return Text(message, where, "content", field);
  std::string joined;
  for (size_t i = 0; i < found->size(); ++i) {
    const nlohmann::json& part = (*found)[i];
    const std::string part_field = fmt::format("{}[{}]", field, i);
    if (!part.is_object()) WrongType(where, part_field, part, "an object");
    if (part.value("type", nlohmann::json()) != "text") {
      throw UserError(ExitCode::kUsage,
                      "{}: field '{}.type' must be 'text'; other parts cannot be "
                      "learned from",
                      where, part_field);
    }
    joined += Text(part, where, "text", part_field + ".text");
  }
  return joined;
}

ChatTurn ParseTurn(const nlohmann::json& message, const std::string& where,
                   const std::string& field) {
  if (!message.is_object()) WrongType(where, field, message, "an object");
  ChatTurn turn;
  turn.role = Text(message, where, "role", field + ".role");
  if (turn.role != "system" && turn.role != "user" && turn.role != "assistant") {
    throw UserError(ExitCode::kUsage,
                    "{}: field '{}.role' is '{}'; supported are 'system', 'user' and 'assistant'",
                    where, field, OneLine(turn.role, 40));
  }
  for (const char* call : {"tool_calls", "function_call"}) {
    const auto found = message.find(call);
    if (found != message.end() && !found->empty()) {
      throw UserError(ExitCode::kUsage, "{}: field '{}.{}': tool calls are not supported", where,
                      field, call);
    }
  }
  turn.content = Content(message, where, field + ".content");
  const auto reasoning = message.find("reasoning_content");
  if (reasoning != message.end() && reasoning->is_string()) {
    turn.reasoning = reasoning->get<std::string>();
  }
  return turn;
}

MarkedTokens TokenizeChat(const nlohmann::json& messages, const std::string& where,
                          const Encoder& encoder, const ChatStyle& style) {
  if (!messages.is_array()) WrongType(where, "messages", messages, "a list");
  if (messages.empty()) {
    throw UserError(ExitCode::kUsage, "{}: field 'messages' is an empty list", where);
  }
  std::vector<ChatTurn> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    turns.push_back(ParseTurn(messages[i], where, fmt::format("messages[{}]", i)));
  }
  return EncodeChat(style, turns, encoder, where);
}

void AddEnd(MarkedTokens& marked, const DocumentRules& rules) {
  if (rules.eos_id < 0) return;
  if (!marked.tokens.empty() && marked.tokens.back() == rules.eos_id) return;
  marked.Add(rules.eos_id, true);
}

MarkedTokens TokenizePair(const std::string& prompt, const std::string& completion,
                          const Encoder& encoder, const DocumentRules& rules) {
  MarkedTokens marked;
  if (rules.bos_id >= 0) marked.Add(rules.bos_id, false);
  const std::vector<int32_t> head = EncodeLong(prompt, encoder);
  const std::vector<int32_t> whole = EncodeLong(prompt + completion, encoder);
  marked.Add(head, false);
  if (head.size() <= whole.size() && std::equal(head.begin(), head.end(), whole.begin())) {
    marked.Add({whole.begin() + static_cast<ptrdiff_t>(head.size()), whole.end()}, true);
  } else {
    marked.Add(EncodeLong(completion, encoder), true);
  }
  // The prompt may end in the end token itself; the completion's end is learned all the same.
  if (completion.empty() && rules.eos_id >= 0) {
    marked.Add(rules.eos_id, true);
  } else {
    AddEnd(marked, rules);
  }
  return marked;
}

MarkedTokens TokenizeText(const std::string& text, const Encoder& encoder,
                          const DocumentRules& rules) {
  MarkedTokens marked;
  if (rules.bos_id >= 0) marked.Add(rules.bos_id, false);
  marked.Add(EncodeLong(text, encoder), true);
  AddEnd(marked, rules);
  return marked;
}

}  // namespace

std::vector<int32_t> EncodeLong(std::string_view text, const Encoder& encoder) {
  std::vector<int32_t> ids;
  while (text.size() > kEncodePiece) {
    const size_t cut = encoder.safe_cut(text.substr(0, kEncodePiece));
    if (cut == 0) break;
    const std::vector<int32_t> piece = encoder.encode(text.substr(0, cut));
    ids.insert(ids.end(), piece.begin(), piece.end());
    text.remove_prefix(cut);
  }
  if (ids.empty()) return encoder.encode(text);
  const std::vector<int32_t> piece = encoder.encode(text);
  ids.insert(ids.end(), piece.begin(), piece.end());
  return ids;
}

bool HasTarget(const MarkedTokens& marked) {
  return marked.learned.size() > 1 &&
         std::find(marked.learned.begin() + 1, marked.learned.end(), 1) != marked.learned.end();
}

TokenizedRecord TokenizeRecord(std::string_view json, const std::string& where,
                               const Encoder& encoder, const ChatStyle& style,
                               const DocumentRules& rules) {
  const nlohmann::json record = ParseJson(json, where);
  if (!record.is_object()) {
    throw UserError(ExitCode::kUsage,
                    "{}: the record is {}; it must be an object with 'text', 'prompt' and "
                    "'completion', or 'messages'",
                    where, JsonTypeName(record));
  }
  TokenizedRecord result;
  if (const auto messages = record.find("messages"); messages != record.end()) {
    result.whole = true;
    result.marked = TokenizeChat(*messages, where, encoder, style);
  } else if (record.contains("completion") ||
             (record.contains("prompt") && !record.contains("text"))) {
    result.whole = true;
    const std::string& prompt = Text(record, where, "prompt", "prompt");
    const std::string& completion = Text(record, where, "completion", "completion");
    result.marked = TokenizePair(prompt, completion, encoder, rules);
  } else if (record.contains("text")) {
    const std::string& text = Text(record, where, "text", "text");
    if (text.empty()) {
      result.fate = RecordFate::kEmptyText;
      return result;
    }
    result.marked = TokenizeText(text, encoder, rules);
  } else {
    throw UserError(
        ExitCode::kUsage,
        "{}: field 'text' is missing, and so are 'prompt' and 'completion', and 'messages'", where);
  }
  if (!HasTarget(result.marked)) result.fate = RecordFate::kNothingToLearn;
  return result;
}

}  // namespace haversack
