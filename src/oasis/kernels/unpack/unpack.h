// Block-heads out of their homes into a prefill's workspace.
#pragma once

#include <cstdint>

#include "oasis/device/device.h"
#include "oasis/kernels/gather/gather.h"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// The K rows of each block-head go to its `to`, the V rows to v_offset beyond, [block_size, head_dim] of bf16 each. An
// FP8 block-head's values are written exactly (fp8_row.h). head_dim and addresses are
// multiples of 16.
struct UnpackParams {
  KvType type = KvType::kBf16;   // of the block-heads
  const Copy* copies = nullptr;  // [count]: from a contiguous block-head
  int64_t count = 0;
  int64_t block_size = 16;
  int64_t head_dim = 0;
  int64_t v_offset = 0;  // bytes
};

void unpack_cpu(Stream& stream, const UnpackParams& params);
void unpack_cuda(Stream& stream, const UnpackParams& params);

}  // namespace oasis::kernels
