// Added tokens: pieces of text that are tokens as they stand and never reach the model.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizer/normalizer.h"

namespace haversack {

struct AddedToken {
  int32_t id;
  std::string content;
  bool special;      // left out of decoded text on demand
  bool single_word;  // matches only where neither neighbour is a word character
  bool lstrip;       // takes the white space to its left with it
  bool rstrip;       // and to its right
  bool normalized;   // is looked for in the normalized text, in its normal form
};

// A prefix tree over bytes.
class TokenTrie {
 public:
  void Insert(std::string_view text, int32_t value);
  bool empty() const { return nodes_.size() == 1; }
  // The longest entry that `text` has at `at`: its value and length; -1 and 0 when there is none.
  struct Match {
    int32_t value = -1;
    size_t bytes = 0;
  };
  Match Longest(std::string_view text, size_t at) const;
  // Whether an entry that begins at `at` may reach beyond `limit`, in `text` or in a text that
  // continues it.
  bool MayCross(std::string_view text, size_t at, size_t limit) const;
  bool MayBegin(unsigned char byte) const { return first_[byte] >= 0; }
  size_t longest_entry() const { return longest_entry_; }

 private:
  struct Node {
    int32_t value = -1;
    std::map<unsigned char, int32_t> next;
  };
  // -1 when there is none.
  int32_t Child(int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<int32_t, 256> first_ = MakeFirst();
  size_t longest_entry_ = 0;

  static std::array<int32_t, 256> MakeFirst() {
    std::array<int32_t, 256> first;
    first.fill(-1);
    return first;
  }
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `where` begins an error. Throws UserError for two tokens with one id or one text.
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer,
              const std::string& where);

  // Calls piece(text, id, begin) for each part of `text`, left to right; id is -1 for ordinary
  // text. `normalized` selects the tokens to look for; special ones are passed over if `ordinary`.
  template <typename Piece>
  void Split(std::string_view text, bool normalized, bool ordinary, Piece piece) const {
    const TokenTrie& trie = normalized ? normalized_ : plain_;
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const Found found = FindNext(trie, text, at, done, ordinary);
      if (found.token == nullptr) break;
      if (done < found.begin) piece(text.substr(done, found.begin - done), -1, done);
      piece(text.substr(found.begin, found.end - found.begin), found.token->id, found.begin);
      done = found.end;
      at = found.next;
    }
    if (done < text.size()) piece(text.substr(done), -1, done);
  }

  // Whether a cut of `text` at `cut` (a blank or line end after a character that is no white space,
  // or the first character of a line) could change which tokens are found, whatever follows `text`.
  bool MayCross(std::string_view text, size_t cut) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* ById(int32_t id) const;
  std::optional<int32_t> Id(std::string_view content) const;
  bool IsSpecialContent(const std::string& content) const {
    return special_contents_.contains(content);
  }
  // The text that decoding starts from: the normal form of a normalized token.
  const std::string& DecodedForm(const AddedToken& token) const;
  bool any_normalized() const { return !normalized_.empty(); }
  bool any_lstrip() const { return any_lstrip_; }

 private:
  struct Found {
    const AddedToken* token = nullptr;
    size_t begin = 0;  // with the white space that it takes
    size_t end = 0;
    size_t next = 0;  // where the search goes on
  };
  Found FindNext(const TokenTrie& trie, std::string_view text, size_t at, size_t done,
                 bool ordinary) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, std::string> normal_forms_;
  std::unordered_set<std::string> special_contents_;
  TokenTrie plain_;
  TokenTrie normalized_;
  bool any_lstrip_ = false;
};

}  // namespace haversack
