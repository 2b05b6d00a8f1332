// Rows of K and V in FP8 on a GPU: what fp8_row.h says, bit for bit.
#pragma once

#include <cstdint>

#include "oasis/kernels/cuda/convert.cuh"

namespace oasis::kernels {

// Of a bf16 number, for the largest of a row; a NaN's is above all others.
__device__ inline uint32_t bf16_magnitude(uint16_t bits) { return bits & 0x7fffu; }

__device__ inline uint32_t fp8_row_scale(uint32_t largest_magnitude) {
  if (largest_magnitude >= 0x7f80) return 255;
  return min(max((static_cast<int>(largest_magnitude + 0x1f) >> 7) - 8, 10), 246);
}

__device__ inline uint8_t fp8_row_byte(uint16_t bf16_bits, uint32_t scale) {
  return float_to_fp8_bits(bf16_bits_to_float(bf16_bits) * __uint_as_float((254u - min(scale, 246u)) << 23));
}

__device__ inline float fp8_scale_value(uint32_t scale) { return scale == 255 ? NAN : __uint_as_float(scale << 23); }

__device__ inline float fp8_row_value(uint8_t byte, uint32_t scale) {
  return fp8_bits_to_float(byte) * fp8_scale_value(scale);
}

// One warp writes a row of d bf16 numbers, bits(i) each; returns its scale byte.
template <typename Bits>
__device__ uint32_t write_fp8_row(int64_t d, Bits bits, uint8_t* bytes) {
  const int lane = threadIdx.x % 32;
  uint32_t largest = 0;
  for (int64_t i = lane; i < d; i += 32) largest = max(largest, bf16_magnitude(bits(i)));
  const uint32_t scale = fp8_row_scale(__reduce_max_sync(0xffffffffu, largest));
  for (int64_t i = lane; i < d; i += 32) bytes[i] = fp8_row_byte(bits(i), scale);
  return scale;
}

}  // namespace oasis::kernels
