// What sealing a block comes to on a GPU, by one block of threads: its summary, and its way home.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oasis/kernels/cuda/fp8_row.cuh"
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

// The shrunk box of the keys of the block in `slot` (seal.h), as SummaryView lays it out. The block of threads has d <=
// kColumns * blockDim.x.
template <int kColumns>
__device__ void write_summary(const PoolView& pool, const std::byte* slot, int64_t block_size, int64_t d, float beta,
                              KvType type, std::byte* rows, float* scratch) {
  float upper[kColumns] = {}, lower[kColumns] = {};
  for (int c = 0; c < kColumns; ++c) {
    const int64_t i = threadIdx.x + c * blockDim.x;
    if (i >= d) continue;
    float most = -INFINITY, least = INFINITY;
    for (int64_t t = 0; t < block_size; ++t) {
      const std::byte* row = slot + t * pool.token_stride;
      const float x = pool.type == KvType::kBf16 ? bf16_bits_to_float(reinterpret_cast<const uint16_t*>(row)[i])
                                                 : fp8_row_value(static_cast<uint8_t>(row[i]),
                                                                 static_cast<uint8_t>(slot[pool.scale_offset + t]));
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

// K rows then V rows, then the scales of FP8, 16 bytes a thread.
__device__ inline void write_block_head(const PoolView& pool, const std::byte* slot, int64_t block_size, int64_t d,
                                        std::byte* home) {
  const int64_t row_vectors = (pool.type == KvType::kBf16 ? 2 * d : d) / 16, half_vectors = block_size * row_vectors;
  for (int64_t i = threadIdx.x; i < 2 * half_vectors; i += blockDim.x) {
    const int64_t in_half = i % half_vectors, t = in_half / row_vectors, column = in_half % row_vectors;
    const std::byte* from = slot + (i < half_vectors ? 0 : pool.v_offset) + t * pool.token_stride + column * 16;
    reinterpret_cast<uint4*>(home)[i] = *reinterpret_cast<const uint4*>(from);
  }
  if (pool.type == KvType::kBf16) return;
  const auto* scales = reinterpret_cast<const uint4*>(slot + pool.scale_offset);
  for (int64_t i = threadIdx.x; i < 2 * block_size / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(home)[2 * half_vectors + i] = scales[i];
  }
}

// The same from a bf16 slot to an FP8 home, through `scratch` [2 * block_size * (d + 1)] in shared memory.
__device__ inline void quantize_block_head(const PoolView& pool, const std::byte* slot, int64_t block_size, int64_t d,
                                           std::byte* home, uint8_t* scratch) {
  for (int64_t row = threadIdx.x / 32; row < 2 * block_size; row += blockDim.x / 32) {
    const std::byte* from = slot + row / block_size * pool.v_offset + row % block_size * pool.token_stride;
    const auto bits = [from](int64_t i) { return reinterpret_cast<const uint16_t*>(from)[i]; };
    const uint32_t scale = write_fp8_row(d, bits, scratch + row * d);
    if (threadIdx.x % 32 == 0) scratch[2 * block_size * d + row] = static_cast<uint8_t>(scale);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < 2 * block_size * (d + 1) / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(home)[i] = reinterpret_cast<const uint4*>(scratch)[i];
  }
}

}  // namespace oasis::kernels
