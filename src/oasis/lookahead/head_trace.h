// What one head's last step was decided from and what came of it, kept for tests that simulate the rules.
#pragma once

#include <cstdint>
#include <vector>

namespace oasis::lookahead {

struct HeadTrace {
  std::vector<float> scores;              // [candidates]: of the prediction
  std::vector<int32_t> admitted, wanted;  // in rank order
  std::vector<int32_t> absent;            // blocks that select saw absent
  // exact: a verified row each, those that did not fit included
  std::vector<std::vector<float>> row_scores;  // [row's candidates]
  std::vector<std::vector<int32_t>> row_lists;
  std::vector<int32_t> demanded;
  int32_t rows_taken = -1;  // rows that fitted in every layer so far
};

}  // namespace oasis::lookahead
