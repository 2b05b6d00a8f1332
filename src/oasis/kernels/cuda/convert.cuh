// Conversions and reductions that CUDA kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace oasis::kernels {

__device__ inline float bf16_bits_to_float(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }

__device__ inline uint16_t float_to_bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

__device__ inline uint8_t float_to_fp8_bits(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }

__device__ inline float fp8_bits_to_float(uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}

__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// Every thread of the block gets the sum. `scratch` [32] floats of shared memory; the block has whole warps.
__device__ inline float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

}  // namespace oasis::kernels
