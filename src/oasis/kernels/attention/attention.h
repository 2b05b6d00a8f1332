// Decode attention of a few rows over lists of slots.
#pragma once

#include <cstdint>

#include "oasis/device/device.h"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// Consecutive rows that attend the same blocks form a group; a group has one list a KV head. Keys are stored after
// RoPE, so order carries no meaning, but lists are in ascending logical block order, the sum runs in that order, and
// partial sums are split at fixed borders: of logical blocks on the CPU (kSplitBlocks), of list entries on CUDA
// (kCudaSplitEntries). A key at position block * block_size + i is seen by
// rows at that position and after it. Softmax scale 1/sqrt(head_dim). A row that sees no key at all gets zeros.
//
// The result of a (row, head) depends only on its q, its list's blocks and their contents: not on pages, on other rows
// or on the number of threads (bit for bit on one machine).
//
// head_dim and block_size are multiples of 16. FP8 slots (on the CPU) give what bf16 slots with the same values give,
// bit for bit. Memory of tokens that no row sees is not used, it may hold NaN. With AVX-512 and on CUDA the queries are
// rounded to bf16: a logit is off by at most 2^-9 of sum |q_i k_i| / sqrt(head_dim); on CUDA the softmax weights are
// rounded to bf16 as well. All else, and the other instruction sets, is fp32. CUDA: head_dim is 64, 80, 96, 128 or 256,
// the pool lies in device memory, its address and strides are multiples of 16.
struct AttentionParams {
  PoolView pool;  // one layer
  int64_t block_size = 16;
  int64_t head_dim = 0;
  int64_t kv_heads = 0;
  int64_t q_per_kv = 0;  // query heads a KV head (GQA group)

  int64_t groups = 0;
  // CUDA: no group has more rows (sizes the grid and the scratch). 0: found in row_begin, which then is host memory.
  int64_t max_group_rows = 0;
  const int32_t* row_begin = nullptr;    // [groups + 1], first row of each group
  const int32_t* positions = nullptr;    // [rows]; negative: masked row, its output is zero
  const ListEntry* entries = nullptr;    // [groups, kv_heads, list_stride]
  const int32_t* entry_count = nullptr;  // [groups, kv_heads]
  int64_t list_stride = 0;

  const float* q = nullptr;  // [rows, q_stride]: kv_heads * q_per_kv heads of head_dim, head-major
  int64_t q_stride = 0;
  float* out = nullptr;  // [rows, out_stride], same shape as q
  int64_t out_stride = 0;

  static constexpr int64_t kSplitBlocks =
      32;  // partial sums cover logical blocks [32 i, 32 i + 32), merged in ascending order
  static constexpr int64_t kCudaSplitEntries = 16;  // on CUDA: list entries [16 i, 16 i + 16)
};

void attention_cpu(Stream& stream, const AttentionParams& params);
void attention_cuda(Stream& stream, const AttentionParams& params);

}  // namespace oasis::kernels
