#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/append/append.h"
#include "oasis/kernels/cuda/fp8_row.cuh"

namespace oasis::kernels {
namespace {

// One warp.
__device__ void write_row(const AppendParams& p, const float* from, std::byte* to, uint8_t* scale) {
  const int lane = threadIdx.x % 32;
  const auto rounded = [from](int64_t i) { return float_to_bf16_bits(from[i]); };
  if (p.pool.type == KvType::kFp8E4M3) {
    const uint32_t s = write_fp8_row(p.head_dim, rounded, reinterpret_cast<uint8_t*>(to));
    if (lane == 0) *scale = static_cast<uint8_t>(s);
    return;
  }
  auto* row = reinterpret_cast<uint16_t*>(to);
  uint32_t largest = 0;
  for (int64_t i = lane; i < p.head_dim; i += 32) {
    row[i] = rounded(i);
    largest = max(largest, bf16_magnitude(row[i]));
  }
  if (!p.fp8_values) return;
  const uint32_t s = fp8_row_scale(__reduce_max_sync(0xffffffffu, largest));
  for (int64_t i = lane; i < p.head_dim; i += 32) {
    row[i] = float_to_bf16_bits(fp8_row_value(fp8_row_byte(row[i], s), s));
  }
}

// Two warps a (row, KV head): one writes K, one V.
__global__ void __launch_bounds__(64) append_kernel(AppendParams p) {
  const int64_t r = blockIdx.x, h = blockIdx.y, is_v = threadIdx.x / 32;
  const int32_t position = p.positions[r];
  if (position < 0) return;
  const int64_t token = position % p.block_size;
  std::byte* slot = p.pool.base + p.pages[r * p.kv_heads + h] * p.pool.page_stride + h * p.pool.head_stride;
  const float* from = is_v ? p.v + r * p.v_stride : p.k + r * p.k_stride;
  write_row(p, from + h * p.head_dim, slot + token * p.pool.token_stride + is_v * p.pool.v_offset,
            reinterpret_cast<uint8_t*>(slot) + p.pool.scale_offset + is_v * p.block_size + token);
}

}  // namespace

void append_cuda(Stream& stream, const AppendParams& params) {
  if (params.rows == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  AppendParams p = params;
  p.positions = staging.in(p.positions, static_cast<size_t>(p.rows));
  p.pages = staging.in(p.pages, static_cast<size_t>(p.rows * p.kv_heads));
  p.k = staging.in(p.k, static_cast<size_t>(p.rows * p.k_stride));
  p.v = staging.in(p.v, static_cast<size_t>(p.rows * p.v_stride));
  append_kernel<<<dim3(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.kv_heads)), 64, 0, s.handle()>>>(p);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
