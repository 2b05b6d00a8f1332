#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/append/append.h"
#include "oasis/kernels/cuda/convert.cuh"

namespace oasis::kernels {
namespace {

// One block of threads a (row, KV head).
__global__ void append_kernel(AppendParams p) {
  const int64_t r = blockIdx.x, h = blockIdx.y;
  const int32_t position = p.positions[r];
  if (position < 0) return;
  const int32_t page = p.pages[r * p.kv_heads + h];
  const int64_t token = position % p.block_size;
  auto* k = reinterpret_cast<uint16_t*>(p.pool.base + page * p.pool.page_stride + h * p.pool.head_stride +
                                        token * p.pool.token_stride);
  auto* v = reinterpret_cast<uint16_t*>(reinterpret_cast<std::byte*>(k) + p.pool.v_offset);
  const float* from_k = p.k + r * p.k_stride + h * p.head_dim;
  const float* from_v = p.v + r * p.v_stride + h * p.head_dim;
  for (int64_t i = threadIdx.x; i < p.head_dim; i += blockDim.x) {
    k[i] = float_to_bf16_bits(from_k[i]);
    v[i] = float_to_bf16_bits(from_v[i]);
  }
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
