#pragma once

#include <cstdint>

#include "oasis/device/device.h"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// Writes the K and V of each row into its block's slot, token positions[r] % block_size, rounding fp32 to bf16 and, in
// an FP8 pool, that to FP8 with the row's scale (fp8_row.h).
struct AppendParams {
  PoolView pool;            // one layer
  bool fp8_values = false;  // a bf16 pool gets the values that an FP8 one would hold
  int64_t block_size = 16;
  int64_t head_dim = 0;
  int64_t kv_heads = 0;
  int64_t rows = 0;
  const int32_t* positions = nullptr;  // [rows]; negative: masked, not written
  const int32_t* pages = nullptr;      // [rows, kv_heads]: page whose slot holds the row's block for that head
  const float* k = nullptr;            // [rows, k_stride], kv_heads * head_dim, after RoPE
  int64_t k_stride = 0;
  const float* v = nullptr;  // [rows, v_stride]
  int64_t v_stride = 0;
};

void append_cpu(Stream& stream, const AppendParams& params);
void append_cuda(Stream& stream, const AppendParams& params);

}  // namespace oasis::kernels
