#include "data/encoder.h"

#include "tokenizer/tokenizer.h"

namespace haversack {

Encoder EncoderOf(const Tokenizer& tokenizer) {
  const Tokenizer* t = &tokenizer;
  Encoder encoder;
  encoder.encode = [t](std::string_view text) { return t->Encode(text); };
  encoder.encode_ordinary = [t](std::string_view text) { return t->EncodeOrdinary(text); };
  encoder.safe_cut = [t](std::string_view text) { return t->SafeCut(text); };
  encoder.token_id = [t](std::string_view token) { return t->TokenId(token); };
  encoder.token_text = [t](int32_t id) { return t->Token(id); };
  encoder.vocab_size = static_cast<int32_t>(t->vocab_size());
  return encoder;
}

}  // namespace haversack
