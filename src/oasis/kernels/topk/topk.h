#pragma once

#include <cstdint>

#include "oasis/device/device.h"

namespace oasis::kernels {

// The min(k, n) blocks with the largest scores, in rank order: higher score first, ties: lower block. Exact. With
// pin_first, block 0 is always among them and ranks first. NaN scores rank last.
struct TopKParams {
  const float* scores = nullptr;  // [items, heads, score_stride]
  int64_t score_stride = 0;
  const int32_t* candidates = nullptr;  // [items]: n
  int64_t items = 0;
  int64_t heads = 0;
  int64_t k = 0;  // k <= block_stride
  bool pin_first = false;
  int32_t* blocks = nullptr;      // [items, heads, block_stride]
  float* block_scores = nullptr;  // [items, heads, block_stride], or null
  int64_t block_stride = 0;
  int32_t* count = nullptr;  // [items, heads]
};

void topk_cpu(Stream& stream, const TopKParams& params);
void topk_cuda(Stream& stream, const TopKParams& params);

}  // namespace oasis::kernels
