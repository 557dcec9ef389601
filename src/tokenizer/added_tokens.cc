#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace haversack {

namespace {

bool WordCharBefore(std::string_view text, size_t at) {
  size_t bytes;
  return at > 0 && IsWordChar(CharAt(text, PreviousChar(text, at), &bytes));
}

bool WordCharAt(std::string_view text, size_t at) {
  size_t bytes;
  return at < text.size() && IsWordChar(CharAt(text, at, &bytes));
}

}  // namespace

void TokenTrie::Insert(std::string_view text, int32_t value) {
  int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].next[byte] = child;
      if (node == 0) first_[byte] = child;
    }
    node = child;
  }
  nodes_[node].value = value;
  longest_entry_ = std::max(longest_entry_, text.size());
}

int32_t TokenTrie::Child(int32_t node, unsigned char byte) const {
  if (node == 0) return first_[byte];
  const auto found = nodes_[node].next.find(byte);
  return found == nodes_[node].next.end() ? -1 : found->second;
}

TokenTrie::Match TokenTrie::Longest(std::string_view text, size_t at) const {
  Match match;
  int32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    node = Child(node, static_cast<unsigned char>(text[i]));
    if (node < 0) break;
    if (nodes_[node].value >= 0) match = {.value = nodes_[node].value, .bytes = i + 1 - at};
  }
  return match;
}

bool TokenTrie::MayCross(std::string_view text, size_t at, size_t limit) const {
  int32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    node = Child(node, static_cast<unsigned char>(text[i]));
    if (node < 0) return false;
    if (nodes_[node].value >= 0 && i >= limit) return true;
  }
  return !nodes_[node].next.empty();
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer,
                         const std::string& where)
    : tokens_(std::move(tokens)) {
  std::unordered_set<std::string> forms;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    std::string storage;
    std::string form = token.content;
    if (token.normalized) form = normalizer.Apply(token.content, &storage);
    if (!by_id_.emplace(token.id, i).second || !ids_.emplace(token.content, token.id).second ||
        !forms.insert((token.normalized ? "n" : "p") + form).second || form.empty()) {
      throw UserError(ExitCode::kUsage,
                      "{}: added_tokens[{}] '{}' with id {} repeats the id or the text of another "
                      "one, or is empty; remove one of them",
                      where, i, OneLine(token.content), token.id);
    }
    if (form != token.content) normal_forms_.emplace(token.id, form);
    (token.normalized ? normalized_ : plain_).Insert(form, token.id);
    if (token.special) special_contents_.insert(token.content);
    any_lstrip_ = any_lstrip_ || token.lstrip;
  }
}

const AddedToken* AddedTokens::ById(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

std::optional<int32_t> AddedTokens::Id(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string& AddedTokens::DecodedForm(const AddedToken& token) const {
  const auto found = normal_forms_.find(token.id);
  return found == normal_forms_.end() ? token.content : found->second;
}

// Leftmost, then longest. A match that is passed over still hides the ones that overlap it.
AddedTokens::Found AddedTokens::FindNext(const TokenTrie& trie, std::string_view text, size_t at,
                                         size_t done, bool ordinary) const {
  if (trie.empty()) return {};
  while (at < text.size()) {
    if (!trie.MayBegin(static_cast<unsigned char>(text[at]))) {
      ++at;
      continue;
    }
    const TokenTrie::Match match = trie.Longest(text, at);
    if (match.value < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = *ById(match.value);
    Found found = {.token = &token, .begin = at, .end = at + match.bytes, .next = at + match.bytes};
    at = found.next;
    if (ordinary && token.special) continue;
    if (token.single_word && (WordCharBefore(text, found.begin) || WordCharAt(text, found.end))) {
      continue;
    }
    size_t bytes;
    if (token.lstrip) {
      while (found.begin > done && IsSpace(CharAt(text, PreviousChar(text, found.begin), &bytes))) {
        found.begin = PreviousChar(text, found.begin);
      }
    }
    if (token.rstrip) {
      while (found.end < text.size() && IsSpace(CharAt(text, found.end, &bytes))) {
        found.end += bytes;
      }
    }
    return found;
  }
  return {};
}

bool AddedTokens::MayCross(std::string_view text, size_t cut) const {
  for (const TokenTrie* trie : {&plain_, &normalized_}) {
    if (trie->empty()) continue;
    const size_t reach = std::min(cut, trie->longest_entry());
    for (size_t at = cut - reach; at < cut; ++at) {
      if (!trie->MayBegin(static_cast<unsigned char>(text[at]))) continue;
      if (trie->MayCross(text, at, cut)) return true;
      // A token that ends at the cut may take the white space behind it.
      const TokenTrie::Match match = trie->Longest(text.substr(0, cut), at);
      if (match.value >= 0 && at + match.bytes == cut && ById(match.value)->rstrip) return true;
    }
  }
  return false;
}

}  // namespace haversack
