// Causal attention of a chunk of prompt rows over one layer's contiguous keys and values.
#pragma once

#include <cstdint>

#include "oasis/base/numeric.h"
#include "oasis/device/device.h"

namespace oasis::kernels {

// Row r is at position first_position + r and sees keys 0 .. first_position + r. Softmax scale 1/sqrt(head_dim).
// head_dim is a multiple of 16. Keys past the last row's are not read; those before it are finite.
//
// A row's result does not depend on how the prompt is cut into calls or on the number of threads (bit for bit on one
// machine). With AVX-512 queries and softmax weights are rounded to bf16, sums are fp32; the other instruction sets
// compute in fp32.
struct PrefillAttentionParams {
  const float* q = nullptr;  // [rows, q_stride]: kv_heads * q_per_kv heads of head_dim
  int64_t q_stride = 0;
  const bf16* k = nullptr;     // [kv_head, token, head_dim] with head stride `kv_head_stride`; after RoPE
  const bf16* v = nullptr;     // same shape
  int64_t kv_head_stride = 0;  // elements
  int64_t first_position = 0;
  int64_t rows = 0;
  int64_t kv_heads = 0;
  int64_t q_per_kv = 0;
  int64_t head_dim = 0;
  float* out = nullptr;  // [rows, out_stride]
  int64_t out_stride = 0;
};

void prefill_attention_cpu(Stream& stream, const PrefillAttentionParams& params);
void prefill_attention_cuda(Stream& stream, const PrefillAttentionParams& params);

}  // namespace oasis::kernels
