// One JSON record to token ids with their loss mask.
#pragma once

#include <string>
#include <string_view>

#include "data/chat_style.h"
#include "data/encoder.h"

namespace haversack {

struct DocumentRules {
  // Ends every document but a conversation (which ends as its template does); < 0: nothing does. A
  // document that already ends in it gets no second one.
  int32_t eos_id = -1;
  // Begins every document but a conversation; < 0: nothing does.
  int32_t bos_id = -1;
};

enum class RecordFate {
  kKept,
  kEmptyText,       // "text": "": skipped
  kNothingToLearn,  // no target, as in a conversation without an answer: skipped
};

struct TokenizedRecord {
  RecordFate fate = RecordFate::kKept;
  MarkedTokens marked;
  // A record of a prompt and its answer, which packing keeps together; plain text may be cut
  // anywhere.
  bool whole = false;
};

// A record is an object with, looked for in this order,
//   "messages": a list of {"role", "content"}: learned as EncodeChat says;
//   "prompt" and "completion": learned are the completion and the end of the document. The two are
//      encoded together where that leaves the prompt's own tokens as they are, else apart;
//   "text": all of it is learned.
// Other fields are ignored. Everything else is a UserError that begins with `where` ("FILE:LINE")
// and names the field.
TokenizedRecord TokenizeRecord(std::string_view json, const std::string& where,
                               const Encoder& encoder, const ChatStyle& style,
                               const DocumentRules& rules);

// encoder.encode in pieces between safe cuts, so that its working memory stays small.
std::vector<int32_t> EncodeLong(std::string_view text, const Encoder& encoder);

// Whether any token but the first is learned.
bool HasTarget(const MarkedTokens& marked);

}  // namespace haversack
