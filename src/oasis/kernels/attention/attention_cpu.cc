// Decode attention on the CPU: the lists are cut into splits at logical borders, each split is attended on its own
// (attention_split.h), then the partial sums of each list are merged in ascending order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/kernels/attention/attention.h"
#include "oasis/kernels/attention/attention_vec.h"
#include "oasis/kernels/cpu_features.h"

namespace oasis::kernels {
namespace {

constexpr AttentionLevel kAttentionPortable{packed_bytes, tile_bytes, pack, attend, merge};

const AttentionLevel& level() {
  switch (cpu_level()) {
    case CpuLevel::kAvx512:
      return kAttentionAvx512;
    case CpuLevel::kAvx2:
      return kAttentionAvx2;
    case CpuLevel::kPortable:
      break;
  }
  return kAttentionPortable;
}

// Memory that stays with its thread, so that a step allocates nothing once the largest call has been seen. Aligned to
// 64 bytes.
class Scratch {
 public:
  std::byte* reserve(size_t bytes) {
    if (memory_.size() < bytes + 64) memory_.resize(bytes + 64);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<std::byte> memory_;
};

int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct Split {
  int32_t list;  // group * kv_heads + head
  int32_t entry_begin, entry_end;
  int64_t first_query;  // its queries' index among those of all splits
};

struct Plan {
  std::vector<int32_t> rows, positions;  // the unmasked rows, group by group
  std::vector<int64_t> group_begin;      // [groups + 1], into rows
  std::vector<Split> splits;             // list by list, ascending
  std::vector<int64_t> list_splits;      // [lists + 1], into splits
  std::vector<int64_t> item_splits;      // [items + 1], into splits; an item is a run of splits of one list
  int64_t queries = 0;                   // over all splits
  int64_t largest_item_queries = 0;
  int64_t largest_scores = 0;  // floats of one split's scores
};

constexpr int64_t kBlocksPerItem = 16;  // an item goes on to the next split until it has that many

void plan_list(const AttentionParams& p, int64_t list, int64_t queries, Plan& plan) {
  const ListEntry* entries = p.entries + list * p.list_stride;
  const int32_t count = queries == 0 ? 0 : p.entry_count[list];
  int64_t in_item = 0;
  for (int32_t begin = 0, end; begin < count; begin = end) {
    const int64_t index = entries[begin].block / AttentionParams::kSplitBlocks;
    for (end = begin + 1; end < count && entries[end].block / AttentionParams::kSplitBlocks == index;) ++end;
    if (in_item == 0) plan.item_splits.push_back(static_cast<int64_t>(plan.splits.size()));
    plan.splits.push_back({static_cast<int32_t>(list), begin, end, plan.queries});
    plan.queries += queries;
    plan.largest_scores = std::max(plan.largest_scores, queries * (end - begin) * p.block_size);
    in_item += end - begin;
    if (in_item >= kBlocksPerItem) in_item = 0;
  }
  plan.list_splits.push_back(static_cast<int64_t>(plan.splits.size()));
}

void make_plan(const AttentionParams& p, Plan& plan) {
  plan.rows.clear(), plan.positions.clear(), plan.splits.clear();
  plan.group_begin.assign(1, 0), plan.list_splits.assign(1, 0), plan.item_splits.clear();
  plan.queries = plan.largest_item_queries = plan.largest_scores = 0;
  for (int64_t g = 0; g < p.groups; ++g) {
    for (int32_t r = p.row_begin[g]; r < p.row_begin[g + 1]; ++r) {
      if (p.positions[r] < 0) continue;
      plan.rows.push_back(r);
      plan.positions.push_back(p.positions[r]);
    }
    plan.group_begin.push_back(static_cast<int64_t>(plan.rows.size()));
    const int64_t queries = (plan.group_begin[g + 1] - plan.group_begin[g]) * p.q_per_kv;
    plan.largest_item_queries = std::max(plan.largest_item_queries, queries);
    for (int64_t h = 0; h < p.kv_heads; ++h) plan_list(p, g * p.kv_heads + h, queries, plan);
  }
  plan.item_splits.push_back(static_cast<int64_t>(plan.splits.size()));
}

// The partial sums of all splits.
struct Partials {
  float* max;
  float* sum;
  float* acc;  // [queries, acc_stride]
  int64_t acc_stride;
};

void attend_item(const AttentionParams& p, const Plan& plan, const AttentionLevel& level, const Partials& partials,
                 int64_t item) {
  const Split* split = &plan.splits[plan.item_splits[item]];
  const Split* end = plan.splits.data() + plan.item_splits[item + 1];
  const int64_t group = split->list / p.kv_heads, head = split->list % p.kv_heads;
  const int64_t first_row = plan.group_begin[group], rows = plan.group_begin[group + 1] - first_row;
  const int64_t packed = level.packed_bytes(p.head_dim), tile = align64(level.tile_bytes(p.head_dim));

  static thread_local Scratch scratch;
  std::byte* memory = scratch.reserve(plan.largest_item_queries * packed + tile + plan.largest_scores * sizeof(float));
  std::byte* packed_q = memory + tile;

  const float scale = 1.44269504f / std::sqrt(static_cast<float>(p.head_dim));  // base-2 logits
  int32_t lowest = std::numeric_limits<int32_t>::max();
  for (int64_t r = 0; r < rows; ++r) {
    const float* q = p.q + plan.rows[first_row + r] * p.q_stride + head * p.q_per_kv * p.head_dim;
    for (int64_t g = 0; g < p.q_per_kv; ++g)
      level.pack(q + g * p.head_dim, scale, p.head_dim, packed_q + (r * p.q_per_kv + g) * packed);
    lowest = std::min(lowest, plan.positions[first_row + r]);
  }

  for (; split != end; ++split) {
    const ListEntry* entries = p.entries + split->list * p.list_stride + split->entry_begin;
    const int64_t count = split->entry_end - split->entry_begin;
    int64_t full = count;
    while (full > 0 && (entries[full - 1].block + int64_t{1}) * p.block_size - 1 > lowest) --full;
    level.attend({.slots = p.pool.base + head * p.pool.head_stride,
                  .page_stride = p.pool.page_stride,
                  .token_stride = p.pool.token_stride,
                  .v_offset = p.pool.v_offset,
                  .scale_offset = p.pool.scale_offset,
                  .type = p.pool.type,
                  .block_size = p.block_size,
                  .head_dim = p.head_dim,
                  .entries = entries,
                  .entry_count = count,
                  .entries_after = p.entry_count[split->list] - split->entry_end,
                  .full_count = full,
                  .rows = rows,
                  .q_per_kv = p.q_per_kv,
                  .positions = plan.positions.data() + first_row,
                  .packed_q = packed_q,
                  .scores = reinterpret_cast<float*>(packed_q + plan.largest_item_queries * packed),
                  .tile = memory,
                  .max = partials.max + split->first_query,
                  .sum = partials.sum + split->first_query,
                  .acc = partials.acc + split->first_query * partials.acc_stride,
                  .acc_stride = partials.acc_stride});
  }
}

void merge_list(const AttentionParams& p, const Plan& plan, const AttentionLevel& level, const Partials& partials,
                int64_t list) {
  const int64_t group = list / p.kv_heads, head = list % p.kv_heads;
  const int64_t first_row = plan.group_begin[group], rows = plan.group_begin[group + 1] - first_row;
  const int64_t split_begin = plan.list_splits[list], splits = plan.list_splits[list + 1] - split_begin;
  const int64_t first_query = splits == 0 ? 0 : plan.splits[split_begin].first_query;
  for (int64_t m = 0; m < rows * p.q_per_kv; ++m) {
    float* out = p.out + plan.rows[first_row + m / p.q_per_kv] * p.out_stride +
                 (head * p.q_per_kv + m % p.q_per_kv) * p.head_dim;
    level.merge({.splits = splits,
                 .step = rows * p.q_per_kv,
                 .max = partials.max + first_query + m,
                 .sum = partials.sum + first_query + m,
                 .acc = partials.acc + (first_query + m) * partials.acc_stride,
                 .acc_stride = partials.acc_stride,
                 .head_dim = p.head_dim,
                 .out = out});
  }
}

void clear_masked_rows(const AttentionParams& p) {
  if (p.groups == 0) return;
  for (int32_t r = p.row_begin[0]; r < p.row_begin[p.groups]; ++r)
    if (p.positions[r] < 0)
      std::memset(p.out + r * p.out_stride, 0, sizeof(float) * p.kv_heads * p.q_per_kv * p.head_dim);
}

}  // namespace

void attention_cpu(Stream& stream, const AttentionParams& p) {
  OASIS_CHECK(p.block_size > 0 && p.block_size % kTileKeys == 0, "block size {}: must be a multiple of {}",
              p.block_size, kTileKeys);
  OASIS_CHECK(p.head_dim > 0 && p.head_dim % 16 == 0, "head_dim {}: must be a multiple of 16", p.head_dim);

  static thread_local Plan plan;
  static thread_local Scratch scratch;
  make_plan(p, plan);
  Partials partials;
  partials.acc_stride = (p.head_dim + 31) / 32 * 32;
  const int64_t acc_bytes = align64(plan.queries * partials.acc_stride * sizeof(float));
  std::byte* memory = scratch.reserve(acc_bytes + 2 * plan.queries * sizeof(float));
  partials.acc = reinterpret_cast<float*>(memory);
  partials.max = reinterpret_cast<float*>(memory + acc_bytes);
  partials.sum = partials.max + plan.queries;

  const Plan& made = plan;  // a thread_local named in a lambda would be the worker's own
  const AttentionLevel& instructions = level();
  stream.pool().run(static_cast<int64_t>(made.item_splits.size()) - 1,
                    [&](int64_t item, int) { attend_item(p, made, instructions, partials, item); });

  constexpr int64_t kMergeInline = 32768;  // floats: fewer are merged before a sleeping thread has woken
  const int64_t lists = p.groups * p.kv_heads;
  if (made.queries * partials.acc_stride < kMergeInline) {
    for (int64_t list = 0; list < lists; ++list) merge_list(p, made, instructions, partials, list);
  } else {
    stream.pool().run(lists, [&](int64_t list, int) { merge_list(p, made, instructions, partials, list); });
  }
  clear_masked_rows(p);
}

}  // namespace oasis::kernels
