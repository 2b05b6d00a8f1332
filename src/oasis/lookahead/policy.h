// How many predicted blocks may come in, and which. The rules that all policies share are select's
// (kernels/select/select.h).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "oasis/lookahead/config.h"

namespace oasis::lookahead {

// Limits of one (sequence, layer) in one step, for select.
struct FetchLimits {
  int32_t cap = 0;                                                   // block-heads a head
  float margin_threshold = -std::numeric_limits<float>::infinity();  // see SelectItem
  bool wait_for_absent = false;                                      // an absent part is fetched all the same
  bool demand = false;  // what prefetch missed is fetched on the critical path, before attention
};

// What a step was like, for policies that adapt.
struct StepFeedback {
  double seconds = 0;           // the whole step
  double wait_seconds = 0;      // of that, the foreground waited for transfers
  double transfer_seconds = 0;  // the transfer was busy
  int64_t fetched = 0;          // block-heads moved
  int64_t refused = 0;          // misses refused by margin or budget
  int64_t block_head_bytes = 0;
};

class FetchPolicy {
 public:
  virtual ~FetchPolicy() = default;
  virtual FetchMode mode() const = 0;
  // `advanced`: tokens that the sequence advanced by in its previous step.
  virtual FetchLimits limits(int32_t advanced) const = 0;
  // The step's budget in block-heads, which select counts down across all layers and sequences; null: none.
  virtual int64_t* budget() { return nullptr; }
  virtual void begin_step() {}
  virtual void end_step(const StepFeedback&) {}
};

std::unique_ptr<FetchPolicy> make_policy(const CoreConfig& config);

}  // namespace oasis::lookahead
