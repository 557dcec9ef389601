#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include <pcre2.h>

#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

std::string MessageOf(int error) {
  unsigned char buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// The library's working memory of this thread. Compiled code runs on a stack of its own on the
// heap, so that a thread with a small stack can match, and no run is too long for it.
struct MatchMemory {
  static constexpr size_t kFirstStack = 64 << 10;
  static constexpr size_t kLargestStack = 256 << 20;

  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kFirstStack, kLargestStack, nullptr);

  MatchMemory() {
    HAVERSACK_CHECK(data != nullptr && context != nullptr, "PCRE2 has no memory");
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, std::numeric_limits<uint32_t>::max());
    pcre2_set_depth_limit(context, std::numeric_limits<uint32_t>::max());
  }
  ~MatchMemory() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchMemory(const MatchMemory&) = delete;
  MatchMemory& operator=(const MatchMemory&) = delete;
};

MatchMemory& ThisThreadsMemory() {
  thread_local MatchMemory memory;
  return memory;
}

}  // namespace

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  ~Code() { pcre2_code_free(compiled); }
};

Regex::Regex(std::string_view pattern, const std::string& where)
    : code_(std::make_unique<Code>()), where_(where) {
  const std::string translated = TranslatePattern(pattern, where);
  int error = 0;
  size_t offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  code_->compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code_->compiled == nullptr) {
    throw UserError(ExitCode::kUsage, "{}: the pattern '{}' is not valid: {}; correct it", where,
                    OneLine(pattern), MessageOf(error));
  }
  // Where there is no just-in-time compiler, matching falls back to the interpreter.
  pcre2_jit_compile(code_->compiled, PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;

RegexCursor::RegexCursor(const Regex& regex, std::string_view text) : regex_(regex), text_(text) {
  if (WithStandIns(text, &with_stand_ins_)) text_ = with_stand_ins_;
}

bool RegexCursor::Next(size_t* start, size_t* end) {
  MatchMemory& memory = ThisThreadsMemory();
  const auto match = [&](uint32_t options) {
    return pcre2_match(regex_.code_->compiled, reinterpret_cast<PCRE2_SPTR>(text_.data()),
                       text_.size(), next_, options | PCRE2_NO_UTF_CHECK, memory.data,
                       memory.context);
  };
  while (next_ <= text_.size()) {
    int result = match(0);
    // The interpreter keeps its backtracking points on the heap.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      throw UserError(ExitCode::kUsage,
                      "{}: the pattern gave up on a text of {} bytes: {}; split the text",
                      regex_.where_, text_.size(), MessageOf(result));
    }
    const size_t* found = pcre2_get_ovector_pointer(memory.data);
    const bool empty = found[0] == found[1];
    if (empty && found[1] == last_end_) {
      if (found[1] == text_.size()) break;
      next_ = found[1] + CharBytes(static_cast<unsigned char>(text_[found[1]]));
      continue;
    }
    *start = found[0];
    *end = next_ = last_end_ = found[1];
    return true;
  }
  next_ = text_.size() + 1;
  return false;
}

}  // namespace haversack
