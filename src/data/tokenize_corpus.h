// Files to tokens: reads pieces in order, tokenises batches of them in parallel, writes in order.
// At most a batch is in memory, whatever the corpus; the result does not depend on the number of
// threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/corpus_files.h"
#include "data/encoder.h"
#include "data/record.h"
#include "data/token_store.h"

namespace haversack {

struct TokenizeHooks {
  std::function<void(const std::string&)> log;  // one line each; may be empty
  std::function<void()> poll;  // called between batches; may throw to stop; may be empty
  // Bytes that may be taken. The batches are the smaller for it, and a record that is too long to
  // be tokenised in it is a UserError (exit 3).
  int64_t memory = int64_t{1} << 40;
};

// Appends every document of `files` to `store`. A malformed record, text that is not UTF-8, or a
// file without any content is a UserError (exit 2) naming file and line.
void TokenizeCorpus(const std::vector<CorpusFile>& files, const Encoder& encoder,
                    const ChatStyle& style, const DocumentRules& rules, const TokenizeHooks& hooks,
                    StoreWriter& store);

}  // namespace haversack
