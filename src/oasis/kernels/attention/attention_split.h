// Internal: the inner part of attention that each instruction set has its own version of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oasis/kernels/attention/attention.h"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// Partial attention of some queries over one split (at most kSplitBlocks listed blocks of one KV head). Query m belongs
// to row m / q_per_kv. Each query's arithmetic is the same whatever other queries there are.
struct AttentionSplit {
  const std::byte* slots = nullptr;  // K of token 0 in page 0 of this KV head
  int64_t page_stride = 0;           // bytes, as in PoolView
  int64_t token_stride = 0;
  int64_t v_offset = 0;
  int64_t scale_offset = 0;
  KvType type = KvType::kBf16;
  int64_t block_size = 0;
  int64_t head_dim = 0;
  const ListEntry* entries = nullptr;  // [entry_count], ascending blocks
  int64_t entry_count = 0;
  int64_t entries_after = 0;  // more of the list lie behind them, to be prefetched
  // Entries from here on hold keys that some row does not see.
  int64_t full_count = 0;

  int64_t rows = 0;
  int64_t q_per_kv = 0;
  const int32_t* positions = nullptr;   // [rows], none negative
  const std::byte* packed_q = nullptr;  // [rows * q_per_kv, packed_bytes]
  float* scores = nullptr;              // [rows * q_per_kv, entry_count * block_size], scratch
  std::byte* tile = nullptr;            // tile_bytes, scratch

  // Of each query: the greatest base-2 logit (-infinity if it sees no key), the sum of 2^(logit - max) and the sum of
  // values so weighted.
  float* max = nullptr;  // [rows * q_per_kv]
  float* sum = nullptr;  // [rows * q_per_kv]
  float* acc = nullptr;  // [rows * q_per_kv, acc_stride], acc_stride a multiple of 32
  int64_t acc_stride = 0;
};

// The partial sums of one query over the splits of its list, `step` queries apart.
struct AttentionMerge {
  int64_t splits = 0;
  int64_t step = 0;
  float* max = nullptr;  // overwritten
  const float* sum = nullptr;
  const float* acc = nullptr;
  int64_t acc_stride = 0;
  int64_t head_dim = 0;
  float* out = nullptr;  // [head_dim]
};

// All scratch is aligned to 64 bytes.
struct AttentionLevel {
  int64_t (*packed_bytes)(int64_t head_dim);  // a multiple of 64
  int64_t (*tile_bytes)(int64_t head_dim);
  void (*pack)(const float* q, float scale, int64_t head_dim, std::byte* packed);
  void (*attend)(const AttentionSplit&);
  void (*merge)(const AttentionMerge&);
};

extern const AttentionLevel kAttentionAvx2;
extern const AttentionLevel kAttentionAvx512;

}  // namespace oasis::kernels
