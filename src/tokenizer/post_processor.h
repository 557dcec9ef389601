// The `post_processor` of tokenizer.json: which special tokens frame a text. TemplateProcessing
// (its template for a single text), ByteLevel (which changes offsets only), and Sequence of those.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/json_fields.h"

namespace haversack {

class PostProcessor {
 public:
  PostProcessor() = default;
  // `parent` holds the field "post_processor", which may be missing or null. Throws UserError that
  // names what is not supported.
  static PostProcessor FromJson(const Fields& parent);

  // `ids` with the special tokens around it.
  std::vector<int32_t> Apply(std::vector<int32_t> ids) const;

 private:
  void Read(const Fields& fields);
  void ReadTemplate(const Fields& fields);

  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
};

}  // namespace haversack
