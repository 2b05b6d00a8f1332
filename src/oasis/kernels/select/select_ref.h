// The rules of residency of one (sequence, layer, KV head), written from design section 5 over sets of blocks: no
// slots, no pages, no sorting tricks.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace oasis::kernels {

struct RefHead {
  std::map<int32_t, int32_t> residents;  // block -> step in which it was last predicted
  std::set<int32_t> open;
  double spread = 0;  // adaptive; 0: no estimate yet
};

struct RefStep {
  int32_t t = 0;
  int32_t r = 0;
  int32_t k = 0;
  int32_t candidates = 0;
  int32_t open_end = 0;
  int32_t cap = 0;
  double threshold = -1e300;
  std::set<int32_t> absent;
  bool wait_for_absent = false;
  std::vector<int32_t> p;  // predicted, in rank order
  std::vector<float> scores;
  int64_t* budget = nullptr;
};

struct RefOutcome {
  std::vector<int32_t> admitted;
  std::vector<int32_t> wanted;
  std::vector<int32_t> list;
  int32_t hits = 0, misses = 0, refused = 0, refused_absent = 0;
};

RefOutcome select_ref(RefHead& head, const RefStep& step);
RefOutcome demand_ref(RefHead& head, const RefStep& step);

}  // namespace oasis::kernels
