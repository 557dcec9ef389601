// How a model writes a conversation: ChatML (`<|im_start|>role\ncontent<|im_end|>\n`), as SmolLM2
// and Qwen use it. Chat templates are Jinja programs; rather than run them, the known ones are
// recognised by the expressions that matter, and every other is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/encoder.h"

namespace haversack {

struct ChatStyle {
  // Why conversations cannot be written for this model; empty where they can.
  std::string problem;
  // The system turn that the template writes where a conversation has none (SmolLM2, Qwen2).
  std::optional<std::string> default_system;
  // Qwen3: the answer behind the last question begins with its reasoning in <think> tags.
  bool thinking = false;
};

// The style of the model directory: chat_template.jinja, else `chat_template` in
// tokenizer_config.json, else plain ChatML. Malformed files are UserErrors; an unknown template is
// a `problem`.
ChatStyle LoadChatStyle(const std::string& model_dir);
// The style of one template's text. `where` names it in the problem.
ChatStyle RecogniseChatTemplate(std::string_view chat_template, const std::string& where);

struct ChatTurn {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
  std::string reasoning;  // of an assistant, where the record gives it apart
};

// Token ids, and for each whether it is to be learned.
struct MarkedTokens {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learned;

  void Add(const std::vector<int32_t>& ids, bool learn);
  void Add(int32_t id, bool learn);
};

// The conversation as the template renders it. Learned are each assistant turn's content and the
// <|im_end|> behind it. Content is encoded as ordinary text: a control token written in it stays
// text. An assistant turn's content is encoded with the turn's header where that leaves the
// header's own tokens as they are, else apart from it, as it would follow them in generation.
// Throws UserError beginning with `where` if the style has a problem or the vocabulary no turn
// markers.
MarkedTokens EncodeChat(const ChatStyle& style, const std::vector<ChatTurn>& turns,
                        const Encoder& encoder, const std::string& where);

}  // namespace haversack
