#include "oasis/text/bpe.h"

#include <algorithm>
#include <queue>
#include <string>

#include "oasis/text/byte_alphabet.h"

namespace oasis::text {

namespace {

constexpr size_t kShortPiece = 32;          // bytes up to which scanning for the best pair beats a heap
constexpr size_t kLongestPiece = 1u << 30;  // positions are 32 bits wide

}  // namespace

Result<Bpe> Bpe::create(std::span<const std::string_view> tokens, std::span<const std::string> merges,
                        bool ignore_merges) {
  Bpe bpe;
  bpe.ignore_merges_ = ignore_merges;
  bpe.index_ = BytesIndex(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) bpe.index_.insert(tokens[id], static_cast<int32_t>(id));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    bpe.byte_ids_[byte] = bpe.index_.find({&c, 1});
  }
  size_t slots = 16;
  while (slots < 2 * merges.size()) slots *= 2;
  bpe.merges_.resize(slots);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    OASIS_RETURN_IF_ERROR(bpe.add_merge(merges[rank], static_cast<uint32_t>(rank)));
  }
  bpe.whole_ = std::make_unique<std::atomic<uint8_t>[]>(tokens.size());
  return bpe;
}

Status Bpe::add_merge(std::string_view text, uint32_t rank) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    return data_corruption("tokenizer merge {} is '{}', not two symbols with a space between", rank, text);
  }
  const auto left = bytes_from_alphabet(text.substr(0, space));
  const auto right = bytes_from_alphabet(text.substr(space + 1));
  int32_t left_id = -1, right_id = -1, result = -1;
  if (left && right) {
    left_id = index_.find(*left), right_id = index_.find(*right), result = index_.find(*left + *right);
  }
  if (left_id < 0 || right_id < 0 || result < 0) {
    return data_corruption("tokenizer merge {} '{}' has a part or a result that is not in the vocabulary", rank, text);
  }
  const uint64_t pair = pair_of(left_id, right_id);
  size_t i = hash(pair) & (merges_.size() - 1);
  while (merges_[i].pair != kNoPair && merges_[i].pair != pair) i = (i + 1) & (merges_.size() - 1);
  merges_[i] = {pair, rank, result};  // of a pair given twice the last rank counts, as in the reference
  return {};
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() > kLongestPiece) {
    encode(piece.substr(0, kLongestPiece), ids);
    return encode(piece.substr(kLongestPiece), ids);
  }
  const int32_t id = index_.find(piece);
  if (id >= 0 && (ignore_merges_ || merges_to_itself(id, piece))) {
    ids.push_back(id);
  } else if (piece.size() <= kShortPiece) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

bool Bpe::merges_to_itself(int32_t id, std::string_view bytes) const {
  std::atomic<uint8_t>& known = whole_[id];
  uint8_t answer = known.load(std::memory_order_relaxed);
  if (answer == 0) {
    std::vector<int32_t> ids;
    bytes.size() <= kShortPiece ? merge_short(bytes, ids) : merge_long(bytes, ids);
    answer = ids.size() == 1 && ids[0] == id ? 1 : 2;
    known.store(answer, std::memory_order_relaxed);
  }
  return answer == 1;
}

void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  int32_t symbols[kShortPiece];
  const Merge* merges[kShortPiece];  // of symbol i and i + 1
  size_t n = 0;
  for (const char c : piece) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) symbols[n++] = id;
  }
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = find_merge(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = n;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (merges[i] != nullptr && (best == n || merges[i]->rank < merges[best]->rank)) best = i;
    }
    if (best == n) break;
    symbols[best] = merges[best]->result;
    --n;
    for (size_t i = best + 1; i < n; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best; i + 1 < n; ++i) merges[i] = merges[i + 1];
    if (best > 0) merges[best - 1] = find_merge(symbols[best - 1], symbols[best]);
    if (best + 1 < n) merges[best] = find_merge(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + n);
}

void Bpe::merge_long(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Symbol {
    int32_t id;              // -1: merged into the one before
    int32_t previous, next;  // -1: none
  };
  struct Candidate {
    uint32_t rank;
    int32_t position;  // of the left symbol
    const Merge* merge;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char c : piece) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    const auto i = static_cast<int32_t>(symbols.size());
    if (id >= 0) symbols.push_back({id, i - 1, i + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::vector<Candidate> initial;
  initial.reserve(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{}, std::move(initial));
  const auto offer = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const Merge* merge = find_merge(symbols[left].id, symbols[symbols[left].next].id);
    if (merge != nullptr) queue.push({merge->rank, left, merge});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) offer(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.position];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (pair_of(left.id, right.id) != top.merge->pair) continue;  // one of the two has changed since
    left.id = top.merge->result;
    right.id = -1;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = top.position;
    offer(left.previous);
    offer(top.position);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace oasis::text
