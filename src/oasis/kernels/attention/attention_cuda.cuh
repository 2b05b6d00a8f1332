// Internal: how attention is cut up on the GPU.
#pragma once

#include "oasis/kernels/attention/attention.h"

namespace oasis::kernels {

struct AttentionCudaArgs {
  AttentionParams p;    // every pointer on the device
  int32_t splits;       // a list: ceil(list_stride / kSplitEntries)
  int32_t max_queries;  // a group: its rows times q_per_kv
  float scale;          // from q . k to a base-2 logit
  // Partial sums: of each query the greatest base-2 logit (-infinity: no key seen) and the sum of 2^(logit - max); the
  // sum of values so weighted.
  float2* max_sum;  // [groups * kv_heads, splits, max_queries]
  float* acc;       // [groups * kv_heads, splits, max_queries, head_dim]

  __host__ __device__ int64_t partial(int64_t list, int64_t split, int64_t query) const {
    return (list * splits + split) * max_queries + query;
  }
};

}  // namespace oasis::kernels
