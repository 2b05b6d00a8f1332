// Finds added tokens (control and user-defined) in raw text: leftmost, then longest.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace oasis::text {

class AddedTokens {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int32_t id = -1;  // -1: no further match
  };

  // A search: which control tokens count.
  struct Rule {
    bool control = true;         // false: none
    std::string_view untrusted;  // per byte of the text: non-zero bytes may not be part of a control token; or empty
  };

  AddedTokens() : nodes_(1) {}
  void insert(std::string_view text, int32_t id, bool control);
  Match next(std::string_view text, size_t pos, const Rule& rule) const;

 private:
  struct Node {
    char byte = 0;
    bool control = false;
    int32_t id = -1;
    int32_t child = -1;    // the first of the next depth
    int32_t sibling = -1;  // the next of this depth
  };
  int32_t child_of(int32_t node, char byte) const;

  std::vector<Node> nodes_;  // a trie; 0 is its root
  bool starts_[256] = {};
};

}  // namespace oasis::text
