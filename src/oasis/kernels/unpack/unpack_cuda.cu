#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/fp8_row.cuh"
#include "oasis/kernels/unpack/unpack.h"

namespace oasis::kernels {
namespace {

constexpr int kThreads = 128;

// One block of threads a block-head, which may lie in host memory: it is read once, 16 bytes a thread.
__global__ void __launch_bounds__(kThreads) unpack_kernel(UnpackParams p) {
  extern __shared__ uint8_t scales[];  // [2, block_size]
  const Copy copy = p.copies[blockIdx.x];
  const auto* from = reinterpret_cast<const uint4*>(copy.from);
  const int64_t elements = p.block_size * p.head_dim;  // of K
  if (p.type == KvType::kBf16) {
    const int64_t half = elements * 2 / 16;
    for (int64_t i = threadIdx.x; i < 2 * half; i += kThreads) {
      auto* to = reinterpret_cast<uint4*>(copy.to + i / half * p.v_offset);
      to[i % half] = from[i];
    }
    return;
  }
  for (int64_t i = threadIdx.x; i < 2 * p.block_size / 4; i += kThreads) {
    reinterpret_cast<uint32_t*>(scales)[i] = reinterpret_cast<const uint32_t*>(copy.from + 2 * elements)[i];
  }
  __syncthreads();
  const int64_t half = elements / 16;
  for (int64_t i = threadIdx.x; i < 2 * half; i += kThreads) {
    const uint4 vector = from[i];
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    const uint32_t scale = scales[i * 16 / p.head_dim];
    auto* to = reinterpret_cast<uint32_t*>(copy.to + i / half * p.v_offset + i % half * 32);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t pair = words[j / 2] >> (j % 2 * 16);
      const uint32_t low = float_to_bf16_bits(fp8_row_value(static_cast<uint8_t>(pair), scale));
      const uint32_t high = float_to_bf16_bits(fp8_row_value(static_cast<uint8_t>(pair >> 8), scale));
      to[j] = low | high << 16;
    }
  }
}

}  // namespace

void unpack_cuda(Stream& stream, const UnpackParams& params) {
  if (params.count == 0) return;
  OASIS_CHECK(params.head_dim % 16 == 0, "head_dim {}: unpack takes multiples of 16", params.head_dim);
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  UnpackParams p = params;
  p.copies = staging.in(p.copies, static_cast<size_t>(p.count));
  unpack_kernel<<<static_cast<unsigned>(p.count), kThreads, static_cast<size_t>(2 * p.block_size), s.handle()>>>(p);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
