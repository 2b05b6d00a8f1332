// Scores of all sealed blocks against the rows that predict: one dot product of 2d a block and row, whatever the GQA
// group.
#pragma once

#include <cstdint>

#include "oasis/device/device.h"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// score(block) = max over the item's rows of  (sum_g relu(q_g)) . upper - (sum_g relu(-q_g)) . lower, fp32, g over the
// query heads of the KV head's group (the collapsed form of Quest's sum_i max(q_i min_i, q_i max_i) summed over the
// group).
struct ScoreParams {
  SummaryView summaries;  // one layer
  int64_t head_dim = 0;
  int64_t kv_heads = 0;
  int64_t q_per_kv = 0;

  int64_t items = 0;  // one a sequence (or a row, under `exact`)
  const int32_t* row_begin =
      nullptr;  // [items + 1]: rows of q that score for the item; an empty range: nothing is written
  const int32_t* candidates = nullptr;            // [items]: blocks 0 .. candidates-1 are scored
  const int32_t* const* summary_pages = nullptr;  // [items] -> [candidates]: summary page of each logical block
  const float* q = nullptr;                       // [rows, q_stride], after RoPE, kv_heads * q_per_kv heads
  int64_t q_stride = 0;
  float* scores = nullptr;  // [items, kv_heads, score_stride]
  int64_t score_stride = 0;
};

void score_cpu(Stream& stream, const ScoreParams& params);
void score_cuda(Stream& stream, const ScoreParams& params);

}  // namespace oasis::kernels
