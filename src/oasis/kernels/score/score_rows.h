// The inner loop of score, one function a summary type and instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oasis::kernels {

// scores[i] = weights . (upper, lower) of page pages[i], for i in [0, blocks). `head` is the summary of page 0 for the
// head; weights is [2, head_dim]: sum_g relu(q_g), then -sum_g relu(-q_g). A block's score has one order of summation,
// whatever its place among the blocks.
struct ScoreRows {
  const std::byte* head = nullptr;
  int64_t page_stride = 0;  // bytes
  int64_t head_dim = 0;
  const float* weights = nullptr;
  const int32_t* pages = nullptr;
  int64_t blocks = 0;
  float* scores = nullptr;

  static constexpr int64_t kMaxHeadDim = 512;
  static constexpr int64_t kSimdHeadDim = 16;  // the vector versions want head_dim to be a multiple of it

  const std::byte* rows(int64_t i) const { return head + pages[i] * page_stride; }
};

void score_rows_bf16(const ScoreRows& r);
void score_rows_fp8(const ScoreRows& r);
void score_rows_bf16_avx2(const ScoreRows& r);
void score_rows_fp8_avx2(const ScoreRows& r);
void score_rows_bf16_avx512(const ScoreRows& r);
void score_rows_fp8_avx512(const ScoreRows& r);

}  // namespace oasis::kernels
