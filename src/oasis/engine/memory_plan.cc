#include "oasis/engine/memory_plan.h"

#include <algorithm>
#include <cmath>

#include "oasis/base/units.h"
#include "oasis/lookahead/kv_core.h"
#include "oasis/model/transformer.h"

namespace oasis::engine {
namespace {

using lookahead::CoreConfig;

int64_t blocks_of(int64_t tokens, int64_t block_size) { return (tokens + block_size - 1) / block_size; }

// Pages that one sequence of max_blocks holds at most.
int32_t pages_per_sequence(const CoreConfig& c, Attention attention) {
  return attention == Attention::kDense ? c.max_blocks : c.slots();
}

struct Fast {
  int32_t pages_each, summaries_each;
  int64_t fixed;  // maps and draft KV
  int64_t each;   // bytes a sequence
};

Fast fast_need(const CoreConfig& c, Attention attention, int64_t draft_bytes) {
  Fast f{};
  f.pages_each = pages_per_sequence(c, attention);
  f.summaries_each = c.max_blocks + 1;
  f.fixed = lookahead::KvCore::map_bytes(c) + draft_bytes;
  f.each = f.pages_each * c.shape.page_bytes() + f.summaries_each * c.shape.summary_page_bytes();
  return f;
}

// K and R are never more than there are blocks; a dense sequence owns one page a block.
void set_residents(CoreConfig& c, const EngineConfig& e, int64_t resident) {
  c.resident_blocks = static_cast<int32_t>(std::min<int64_t>(resident, c.max_blocks));
  c.attend_blocks = std::min(c.attend_blocks, c.resident_blocks);
  c.dense_blocks = e.attention == Attention::kDense ? c.max_blocks : e.attention == Attention::kAuto ? c.slots() : 0;
}

}  // namespace

Result<MemoryPlan> plan_memory(const model::ModelConfig& m, const EngineConfig& e, const DrafterSizes& drafter) {
  OASIS_RETURN_IF_ERROR(validate(e));
  OASIS_RETURN_IF_ERROR(model::validate(m));
  const int64_t context = e.max_context > 0 ? e.max_context : m.context;
  if (context > m.context) {
    return invalid_argument("--context {}: this model's context ends at {}", context, m.context);
  }
  MemoryPlan plan;
  CoreConfig& c = plan.core;
  c.shape = {.layers = m.layers,
             .kv_heads = m.kv_heads,
             .head_dim = m.head_dim,
             .block_size = e.block_size,
             .type = e.kv_type,
             .summary_type = e.summary_type};
  c.q_per_kv = m.heads / m.kv_heads;
  c.max_sequences = e.max_sequences;
  c.max_blocks = static_cast<int32_t>(blocks_of(context, e.block_size));
  c.max_draft_rows = e.accept_drafts ? e.draft_tokens + 1 : 1;
  c.attend_blocks = e.top_k_blocks;
  c.fetch_ratio = e.fetch_ratio;
  c.fetch = e.fetch;
  c.score = e.block_score;
  c.serial = e.serial;
  c.forced_misses = e.forced_misses;
  c.timeline = e.timeline;
  c.agreement_every = e.agreement_every;
  c.hooks = e.hooks;

  // R: what was asked for, or the largest between K and 1.5 K that the budget holds for all sequences.
  const auto budget = static_cast<int64_t>(std::min<uint64_t>(e.fast_memory, INT64_MAX));
  const int64_t most = static_cast<int64_t>(e.top_k_blocks) * 3 / 2;
  const int64_t asked = e.resident_ratio > 0 ? static_cast<int64_t>(e.resident_ratio * e.top_k_blocks + 1e-9) : 0;
  set_residents(c, e, asked > 0 ? asked : most);
  Fast need = fast_need(c, e.attention, drafter.fast_bytes);
  if (asked == 0 && budget > 0 && e.attention != Attention::kDense) {
    for (int64_t r = most; r >= e.top_k_blocks && need.fixed + need.each * e.max_sequences > budget; --r) {
      set_residents(c, e, r);
      need = fast_need(c, e.attention, drafter.fast_bytes);
    }
  }
  const int64_t room = budget > 0 ? budget - need.fixed : need.each * e.max_sequences;
  if (room < need.each) {
    return resource_exhausted(
        "--fast-memory {} is too small: one sequence of {} tokens needs {} ({} pages of {}, summaries {}, maps and "
        "draft KV {}); "
        "short by {}: give more, or a smaller --top-k-blocks or --context, or fewer sequences",
        format_bytes(e.fast_memory), context, format_bytes(static_cast<uint64_t>(need.each + need.fixed)),
        need.pages_each, format_bytes(static_cast<uint64_t>(c.shape.page_bytes())),
        format_bytes(static_cast<uint64_t>(need.summaries_each * c.shape.summary_page_bytes())),
        format_bytes(static_cast<uint64_t>(need.fixed)), format_bytes(static_cast<uint64_t>(need.each - room)));
  }
  plan.sequences_at_once = static_cast<int32_t>(std::min<int64_t>(e.max_sequences, room / need.each));
  c.summary_pages = plan.sequences_at_once * need.summaries_each;
  const int64_t for_pages = room - int64_t{c.summary_pages} * c.shape.summary_page_bytes();
  c.pages = static_cast<int32_t>(
      std::min<int64_t>(int64_t{e.max_sequences} * need.pages_each, for_pages / c.shape.page_bytes()));
  plan.page_bytes = c.shape.page_bytes();
  plan.summary_page_bytes = c.shape.summary_page_bytes();
  plan.kv_bytes = c.pages * plan.page_bytes;
  plan.summary_bytes = c.summary_pages * plan.summary_page_bytes;
  plan.map_bytes = lookahead::KvCore::map_bytes(c);
  plan.draft_bytes = drafter.fast_bytes;
  plan.fast_bytes_per_sequence = need.each;

  plan.home_bytes = kv::dram_home_bytes({.shape = c.shape, .extra_bytes = drafter.home_bytes});
  plan.homes = e.max_sequences * c.max_blocks;
  const int64_t all_homes = plan.home_bytes * plan.homes;
  plan.capacity_memory_bytes = e.capacity_memory > 0 ? static_cast<int64_t>(e.capacity_memory) : all_homes;
  if (!e.capacity_file.empty()) {
    plan.capacity_file_bytes = e.capacity_file_bytes > 0 ? static_cast<int64_t>(e.capacity_file_bytes) : 0;
  }

  const int64_t width = int64_t{m.heads} * m.head_dim, kv_width = int64_t{m.kv_heads} * m.head_dim;
  plan.prefill_workspace_bytes = context * (4 * int64_t{m.hidden} + 4 * drafter.feature_dim + 4 * kv_width);
  const int64_t step_rows = int64_t{e.max_sequences} * (1 + c.max_draft_rows);
  const int64_t rows = std::max<int64_t>(step_rows, e.prefill_chunk);
  plan.activation_bytes = model::Transformer::scratch_bytes(m, rows) +
                          4 * rows * (m.hidden + 4 * width + 2 * kv_width + 2 * m.head_dim + drafter.feature_dim) +
                          4 * step_rows * (m.vocab + m.hidden) + drafter.scratch_bytes;
  return plan;
}

Status validate(const EngineConfig& e) {
  if (e.max_sequences < 1 || e.max_sequences > 4096)
    return invalid_argument("{} sequences at once: must lie in 1 .. 4096", e.max_sequences);
  if (e.max_context < 0) return invalid_argument("context of {} tokens: must be positive", e.max_context);
  if (e.block_size != 16 && e.block_size != 32 && e.block_size != 64)
    return invalid_argument("block size {}: must be 16, 32 or 64", e.block_size);
  if (e.top_k_blocks < 1 || e.top_k_blocks > 65536)
    return invalid_argument("top-k blocks {}: must lie in 1 .. 65536", e.top_k_blocks);
  if (e.resident_ratio != 0 && !(e.resident_ratio >= 1 && e.resident_ratio <= 1024)) {
    return invalid_argument("resident ratio {}: must be at least 1 (resident blocks a top-k block)", e.resident_ratio);
  }
  if (!(e.fetch_ratio >= 0 && e.fetch_ratio <= 1))
    return invalid_argument("fetch ratio {}: must lie in 0 .. 1", e.fetch_ratio);
  if (e.draft_tokens < 1 || e.draft_tokens > 8)
    return invalid_argument("{} draft tokens: must lie in 1 .. 8", e.draft_tokens);
  if (!(e.prefill_share >= 0 && e.prefill_share <= 1))
    return invalid_argument("prefill share {}: must lie in 0 .. 1", e.prefill_share);
  if (e.prefill_chunk < 1 || e.prefill_chunk > 65536)
    return invalid_argument("prefill chunk of {} tokens: must lie in 1 .. 65536", e.prefill_chunk);
  return {};
}

}  // namespace oasis::engine
