// Where every byte will go, before anything is allocated (cases 19, 61). The engine allocates by this plan, `oasis
// plan` prints it.
#pragma once

#include <cstdint>

#include "oasis/engine/config.h"
#include "oasis/model/config.h"

namespace oasis::engine {

// What the plan needs to know of the drafter.
struct DrafterSizes {
  int64_t fast_bytes = 0;     // of all sequences
  int64_t home_bytes = 0;     // a home
  int64_t feature_dim = 0;    // fp32 values a prompt token during prefill
  int64_t scratch_bytes = 0;  // of its activations
};

struct MemoryPlan {
  lookahead::CoreConfig core;  // complete: shape, K, R, pages, summary pages

  // Fast tier. page, summary_page: one of each.
  int64_t page_bytes = 0, summary_page_bytes = 0;
  int64_t kv_bytes = 0, summary_bytes = 0, map_bytes = 0, draft_bytes = 0;
  int64_t fast_bytes() const { return kv_bytes + summary_bytes + map_bytes + draft_bytes; }
  int64_t fast_bytes_per_sequence = 0;  // at max_context, as the engine will hold it
  int32_t sequences_at_once = 0;        // of max_context tokens that the fast tier holds

  // Capacity tier.
  int64_t home_bytes = 0;  // one home record
  int32_t homes = 0;
  int64_t capacity_memory_bytes = 0, capacity_file_bytes = 0;

  // Beside the tiers: hidden states, one layer's KV and drafter features of a prompt; activations of model and drafter
  // and logits of a step.
  int64_t prefill_workspace_bytes = 0, activation_bytes = 0;
};

// An error states the shortfall: what one sequence needs at least, what is there, what to change, by the names of the
// program's options.
Result<MemoryPlan> plan_memory(const model::ModelConfig& model, const EngineConfig& engine,
                               const DrafterSizes& drafter);

}  // namespace oasis::engine
