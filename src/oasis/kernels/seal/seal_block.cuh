// What sealing a block comes to on a GPU, by one block of threads: its summary, and its way home.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// Writes a row of d as FP8 with one scale: the largest value becomes the largest FP8 number. A thread holds the
// coordinates threadIdx.x + c * blockDim.x. `scratch` [warps].
template <int kColumns>
__device__ void write_fp8_row(const float (&x)[kColumns], int64_t d, float* scale_out, std::byte* out, float* scratch) {
  float peak = 0;
  bool has_nan = false;
  for (int c = 0; c < kColumns; ++c) {
    if (threadIdx.x + c * blockDim.x >= d) continue;
    peak = fmaxf(peak, fabsf(x[c]));
    has_nan |= isnan(x[c]);
  }
  has_nan = __syncthreads_or(has_nan);
  for (int offset = 16; offset > 0; offset /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = peak;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / 32; ++w) peak = fmaxf(peak, scratch[w]);
  __syncthreads();
  const float scale = has_nan ? NAN : peak / 448.0f;
  if (threadIdx.x == 0) *scale_out = scale;
  for (int c = 0; c < kColumns; ++c) {
    const int64_t i = threadIdx.x + c * blockDim.x;
    if (i < d) reinterpret_cast<uint8_t*>(out)[i] = scale != 0 ? float_to_fp8_bits(x[c] / scale) : 0;
  }
}

// The shrunk box of the block's keys (seal.h), as SummaryView lays it out. The block has d <= kColumns * blockDim.x.
template <int kColumns>
__device__ void write_summary(const std::byte* k, int64_t token_stride, int64_t block_size, int64_t d, float beta,
                              KvType type, std::byte* rows, float* scratch) {
  float upper[kColumns] = {}, lower[kColumns] = {};
  for (int c = 0; c < kColumns; ++c) {
    const int64_t i = threadIdx.x + c * blockDim.x;
    if (i >= d) continue;
    float most = -INFINITY, least = INFINITY;
    for (int64_t t = 0; t < block_size; ++t) {
      const float x = bf16_bits_to_float(reinterpret_cast<const uint16_t*>(k + t * token_stride)[i]);
      most = (x > most) | (x != x) ? x : most;  // a NaN key shows in the scores
      least = (x < least) | (x != x) ? x : least;
    }
    const float inset = (1.0f - beta) * (0.5f * most - 0.5f * least);
    upper[c] = most - inset;
    lower[c] = least + inset;
    if (type == KvType::kBf16) {
      reinterpret_cast<uint16_t*>(rows)[i] = float_to_bf16_bits(upper[c]);
      reinterpret_cast<uint16_t*>(rows)[d + i] = float_to_bf16_bits(lower[c]);
    }
  }
  if (type == KvType::kBf16) return;
  auto* scales = reinterpret_cast<float*>(rows);
  write_fp8_row(upper, d, &scales[0], rows + 8, scratch);
  write_fp8_row(lower, d, &scales[1], rows + 8 + d, scratch);
}

// K rows then V rows, 16 bytes a thread.
__device__ inline void write_block_head(const std::byte* k, int64_t token_stride, int64_t v_offset, int64_t block_size,
                                        int64_t d, std::byte* home) {
  const int64_t row_vectors = d * 2 / 16, half_vectors = block_size * row_vectors;
  for (int64_t i = threadIdx.x; i < 2 * half_vectors; i += blockDim.x) {
    const int64_t in_half = i % half_vectors, t = in_half / row_vectors, column = in_half % row_vectors;
    const std::byte* from = k + (i < half_vectors ? 0 : v_offset) + t * token_stride + column * 16;
    reinterpret_cast<uint4*>(home)[i] = *reinterpret_cast<const uint4*>(from);
  }
}

}  // namespace oasis::kernels
