#include "oasis/text/added_tokens.h"

namespace oasis::text {

int32_t AddedTokens::child_of(int32_t node, char byte) const {
  int32_t child = nodes_[node].child;
  while (child >= 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

void AddedTokens::insert(std::string_view text, int32_t id, bool control) {
  if (text.empty()) return;
  starts_[static_cast<uint8_t>(text[0])] = true;
  int32_t node = 0;
  for (const char byte : text) {
    int32_t child = child_of(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.byte = byte, .sibling = nodes_[node].child});
      nodes_[node].child = child;
    }
    node = child;
  }
  if (nodes_[node].id >= 0) return;
  nodes_[node].id = id;
  nodes_[node].control = control;
}

AddedTokens::Match AddedTokens::next(std::string_view text, size_t pos, const Rule& rule) const {
  for (size_t begin = pos; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    Match match;
    bool trusted = true;
    int32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      node = child_of(node, text[i]);
      if (node < 0) break;
      if (!rule.untrusted.empty() && rule.untrusted[i] != 0) trusted = false;
      const Node& n = nodes_[node];
      if (n.id >= 0 && (!n.control || (rule.control && trusted))) match = {begin, i + 1, n.id};
    }
    if (match.id >= 0) return match;
  }
  return {};
}

}  // namespace oasis::text
