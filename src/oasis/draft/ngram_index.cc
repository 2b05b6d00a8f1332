#include "oasis/draft/ngram_index.h"

#include <algorithm>

namespace oasis::draft {

namespace {

constexpr size_t kFirstSlots = 64;

uint64_t hash(const int32_t* gram, int length) {
  uint64_t h = 0;
  for (int i = 0; i < length; ++i) {
    h = (h ^ static_cast<uint32_t>(gram[i])) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace

// The slot that holds the gram text[end - length, end), or the empty one where it belongs.
int32_t* NgramIndex::slot(Table& table, std::span<const int32_t> text, int length, int32_t end) const {
  const int32_t* gram = text.data() + end - length;
  const size_t mask = table.slots.size() - 1;
  for (size_t at = hash(gram, length) & mask;; at = (at + 1) & mask) {
    int32_t& entry = table.slots[at];
    if (entry == 0 || std::equal(gram, gram + length, text.data() + entry - length)) return &entry;
  }
}

void NgramIndex::insert(int length, std::span<const int32_t> text, int32_t end) {
  Table& table = tables_[static_cast<size_t>(length - 1)];
  if (2 * (table.used + 1) > table.slots.size()) {
    const std::vector<int32_t> old = std::move(table.slots);
    table.slots.assign(std::max(kFirstSlots, 2 * old.size()), 0);
    for (int32_t entry : old)
      if (entry != 0) *slot(table, text, length, entry) = entry;
  }
  int32_t* entry = slot(table, text, length, end);
  table.used += *entry == 0;
  *entry = end;
}

NgramIndex::Match NgramIndex::extend_and_find(std::span<const int32_t> text) {
  const int32_t size = static_cast<int32_t>(text.size());
  if (size <= indexed_) clear();  // another text
  // The suffix itself, which ends at `size`, comes in with the next call.
  for (int32_t end = indexed_ + 1; end < size; ++end)
    for (int length = 1; length <= std::min(kLongest, end); ++length) insert(length, text, end);
  indexed_ = std::max(0, size - 1);
  for (int length = std::min(kLongest, size - 1); length >= 1; --length) {
    Table& table = tables_[static_cast<size_t>(length - 1)];
    if (table.slots.empty()) continue;
    if (const int32_t next = *slot(table, text, length, size); next != 0) return {length, next};
  }
  return {};
}

void NgramIndex::clear() {
  tables_ = {};
  indexed_ = 0;
}

void copy_forward(std::span<const int32_t> text, int32_t next, std::span<int32_t> drafts) {
  const size_t known = text.size() - static_cast<size_t>(next);
  for (size_t i = 0; i < drafts.size(); ++i)
    drafts[i] = i < known ? text[static_cast<size_t>(next) + i] : drafts[i - known];
}

}  // namespace oasis::draft
