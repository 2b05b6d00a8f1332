// What happens to a block once all its tokens are final: its summary is computed and its block-heads are written home.
#pragma once

#include <cstdint>

#include "oasis/device/device.h"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// For every entry and KV head: box of the block's keys, coordinate-wise, shrunk about its middle: mid = (max + min) /
// 2, half = (max - min) / 2, upper = mid + beta * half, lower = mid - beta * half (fp32, then rounded to the summary's
// type), into the summary page; and the block-head written to its home, contiguous as KvShape says: copied or, from a
// bf16 pool to FP8 homes, quantised row by row.
struct SealParams {
  PoolView pool;  // one layer
  int64_t block_size = 16;
  int64_t head_dim = 0;
  int64_t kv_heads = 0;
  float beta = 0.5f;
  int64_t entries = 0;
  const int32_t* pages = nullptr;          // [entries, kv_heads]; negative: nothing is done
  SummaryView summaries;                   // one layer
  const int32_t* summary_pages = nullptr;  // [entries]; negative: no summary wanted
  std::byte* const* homes = nullptr;       // [entries, kv_heads]: where the block-head goes; null: not written
  KvType home_type = KvType::kBf16;        // the pool's, or kFp8E4M3
};

void seal_cpu(Stream& stream, const SealParams& params);
void seal_cuda(Stream& stream, const SealParams& params);

}  // namespace oasis::kernels
