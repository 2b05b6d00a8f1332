// Rules that rank blocks, those included that the engine does not have, put in the place of the engine's own inside a
// run with exact reads.
#pragma once

#include <memory>
#include <string>

#include "eval/session.h"

namespace oasis::eval {

struct BlockRule {
  enum class Rows { kBf16, kFp8, kInt4 };  // one fp32 scale a row where there are fewer than 16 bits
  std::string name;
  float beta = 1;  // the box's half widths, times this
  Rows rows = Rows::kBf16;
  int boxes = 1;                // a block: its tokens in so many runs, the best one counts
  bool prob = false;            // a softmax over the blocks a query head before the group is added up; else raw scores
  bool pin_first = false;       // block 0 is always chosen
  bool residents_only = false;  // chooses among what is in the fast tier: nothing is fetched on demand; no mass
};

// `base` reading exactly by the rule, in a run of one sequence. Adds to the run's sums: `mass` and `ideal_mass`, the
// share of the attention to sealed blocks that the rule's choice keeps and the best choice of K blocks would keep, over
// `mass_count` pairs of a query head and every fourth step; `lru_misses`, what a cache of R block-heads misses that is
// asked for the rule's choice, over `lru_steps` pairs of a KV head and step.
Variant with_rule(Variant base, const BlockRule& rule);

}  // namespace oasis::eval
