#include <algorithm>

#include "oasis/base/status.h"
#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/score/score.h"
#include "oasis/kernels/score/score_rows.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kChunkBlocks = 128;  // blocks a work item scores: some 50 KB of summaries, a few microseconds

using RowScorer = void (*)(const ScoreRows&);

RowScorer scorer_for(KvType type, int64_t head_dim) {
  const bool bf16_rows = type == KvType::kBf16;
#if defined(__x86_64__)
  if (head_dim % ScoreRows::kSimdHeadDim == 0) {
    switch (cpu_level()) {
      case CpuLevel::kAvx512:
        return bf16_rows ? score_rows_bf16_avx512 : score_rows_fp8_avx512;
      case CpuLevel::kAvx2:
        return bf16_rows ? score_rows_bf16_avx2 : score_rows_fp8_avx2;
      case CpuLevel::kPortable:
        break;
    }
  }
#endif
  return bf16_rows ? score_rows_bf16 : score_rows_fp8;
}

// weights[0 .. d) = sum_g relu(q_g), weights[d .. 2d) = -sum_g relu(-q_g): the group collapses before any block is
// read.
void collapse(const float* q, int64_t group, int64_t d, float* weights) {
  std::fill_n(weights, 2 * d, 0.0f);
  for (int64_t g = 0; g < group; ++g) {
    for (int64_t i = 0; i < d; ++i) {
      weights[i] += std::max(q[g * d + i], 0.0f);
      weights[d + i] += std::min(q[g * d + i], 0.0f);
    }
  }
}

void score_chunk(const ScoreParams& p, RowScorer score_rows, int64_t item, int64_t head, int64_t begin) {
  const int64_t d = p.head_dim, blocks = std::min<int64_t>(kChunkBlocks, p.candidates[item] - begin);
  float* scores = p.scores + (item * p.kv_heads + head) * p.score_stride + begin;
  float weights[2 * ScoreRows::kMaxHeadDim];
  float other_row[kChunkBlocks];
  for (int32_t row = p.row_begin[item]; row < p.row_begin[item + 1]; ++row) {
    const bool first = row == p.row_begin[item];
    collapse(p.q + row * p.q_stride + head * p.q_per_kv * d, p.q_per_kv, d, weights);
    score_rows({.head = p.summaries.rows(0, head),
                .page_stride = p.summaries.page_stride,
                .head_dim = d,
                .weights = weights,
                .pages = p.summary_pages[item] + begin,
                .blocks = blocks,
                .scores = first ? scores : other_row});
    for (int64_t i = 0; !first && i < blocks; ++i) scores[i] = std::max(scores[i], other_row[i]);
  }
}

}  // namespace

void score_cpu(Stream& stream, const ScoreParams& p) {
  OASIS_CHECK(p.head_dim > 0 && p.head_dim <= ScoreRows::kMaxHeadDim, "head_dim is {}, the limit {}", p.head_dim,
              ScoreRows::kMaxHeadDim);
  const RowScorer score_rows = scorer_for(p.summaries.type, p.head_dim);
  int64_t longest = 0;
  for (int64_t i = 0; i < p.items; ++i) {
    OASIS_CHECK(p.candidates[i] <= p.score_stride, "item {} has {} candidates, score_stride is {}", i, p.candidates[i],
                p.score_stride);
    longest = std::max<int64_t>(longest, p.candidates[i]);
  }
  const int64_t chunks = (longest + kChunkBlocks - 1) / kChunkBlocks;
  stream.pool().run(p.items * p.kv_heads * chunks, [&](int64_t work, int) {
    const int64_t begin = work % chunks * kChunkBlocks, head = work / chunks % p.kv_heads;
    const int64_t item = work / chunks / p.kv_heads;
    if (begin < p.candidates[item]) score_chunk(p, score_rows, item, head, begin);
  });
}

}  // namespace oasis::kernels
