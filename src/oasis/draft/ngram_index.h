// Where the last few tokens of a text occurred before: a hash index that grows with the text, constant time a token.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace oasis::draft {

class NgramIndex {
 public:
  static constexpr int kLongest = 3;  // facts: longer suffixes add next to nothing

  struct Match {
    int length = 0;    // tokens of the suffix that was found; 0: none
    int32_t next = 0;  // position after its latest earlier occurrence
  };

  // Takes in what is new in `text` (the text of the calls before, and more) and looks up its longest suffix of at most
  // kLongest tokens that occurs earlier, at its latest such place.
  Match extend_and_find(std::span<const int32_t> text);
  void clear();

 private:
  // Open addressing; an entry is the position after a gram (never 0), the gram itself lies in the text.
  struct Table {
    std::vector<int32_t> slots;
    size_t used = 0;
  };
  int32_t* slot(Table& table, std::span<const int32_t> text, int length, int32_t end) const;
  void insert(int length, std::span<const int32_t> text, int32_t end);

  std::array<Table, kLongest> tables_;  // [length - 1]
  int32_t indexed_ = 0;                 // grams that end at positions <= indexed_ are in
};

// The `drafts.size()` tokens that follow position `next` in `text`, continued with the drafts themselves past its end.
void copy_forward(std::span<const int32_t> text, int32_t next, std::span<int32_t> drafts);

}  // namespace oasis::draft
