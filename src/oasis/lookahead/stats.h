// What is counted, where it happens (design section 9). Block-heads unless said otherwise.
#pragma once

#include <cstdint>
#include <vector>

namespace oasis::lookahead {

struct CoreStats {
  int64_t steps = 0;           // layer-steps are steps * layers
  int64_t bytes = 0;           // moved from the capacity tier into slots while decoding
  int64_t blocks = 0;          // the same in block-heads: admitted + demand
  int64_t hits = 0;            // predicted and resident
  int64_t misses = 0;          // predicted and not resident
  int64_t admitted = 0;        // misses fetched ahead
  int64_t refused_cap = 0;     // misses refused by the cap (adaptive: by margin or budget)
  int64_t refused_absent = 0;  // misses refused because their part was not in the addressable tier
  int64_t demand = 0;          // fetched on the critical path (exact)
  int64_t warm_blocks = 0;     // brought in by prefill, resume or the switch to sparse; not part of bytes
  double predict_seconds = 0, select_seconds = 0, transfer_seconds = 0, wait_seconds = 0;

  double agreement_sum = 0;  // of |predicted and true| / min(K, candidates), per (layer, KV head, measured step)
  int64_t agreement_count = 0;
  double cover_sum = 0;                        // of |attended and true| / min(K, candidates), counted like agreement
  std::vector<double> layer_agreement_sum;     // [layers]
  std::vector<int64_t> layer_agreement_count;  // [layers]
  double cover() const { return agreement_count ? cover_sum / static_cast<double>(agreement_count) : 0; }
  double agreement() const { return agreement_count ? agreement_sum / static_cast<double>(agreement_count) : 0; }
};

}  // namespace oasis::lookahead
