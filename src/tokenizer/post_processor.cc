#include "tokenizer/post_processor.h"

#include "base/error.h"

namespace haversack {

PostProcessor PostProcessor::FromJson(const Fields& parent) {
  PostProcessor processor;
  if (parent.Find("post_processor") != nullptr) processor.Read(parent.Object("post_processor"));
  return processor;
}

void PostProcessor::Read(const Fields& fields) {
  const std::string type = fields.String("type");
  if (type == "Sequence") {
    for (const Fields& step : fields.Objects("processors")) Read(step);
  } else if (type == "TemplateProcessing") {
    ReadTemplate(fields);
  } else if (type != "ByteLevel") {
    fields.Fail("type",
                fmt::format("the post-processor '{}' is not supported; supported are Sequence, "
                            "TemplateProcessing, ByteLevel",
                            type));
  }
}

// A later template of a Sequence frames what an earlier one made.
void PostProcessor::ReadTemplate(const Fields& fields) {
  const Fields special_tokens = fields.Object("special_tokens");
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  int texts = 0;
  for (const Fields& piece : fields.Objects("single")) {
    if (piece.Find("Sequence") != nullptr) {
      const std::string id = piece.Object("Sequence").String("id");
      if (id != "A") piece.Fail("Sequence.id", fmt::format("must be A, got '{}'", id));
      ++texts;
      continue;
    }
    const std::string name = piece.Object("SpecialToken").String("id");
    for (const nlohmann::json& id : special_tokens.Object(name).Array("ids")) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > 0x7FFFFFFF) {
        special_tokens.Fail(name, fmt::format("ids holds {}, which is no id", id.dump()));
      }
      (texts == 0 ? before : after).push_back(id.get<int32_t>());
    }
  }
  if (texts != 1) fields.Fail("single", "must hold the text once");
  before_.insert(before_.begin(), before.begin(), before.end());
  after_.insert(after_.end(), after.begin(), after.end());
}

std::vector<int32_t> PostProcessor::Apply(std::vector<int32_t> ids) const {
  ids.insert(ids.begin(), before_.begin(), before_.end());
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

}  // namespace haversack
