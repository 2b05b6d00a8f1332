#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/seal/seal.h"
#include "oasis/kernels/seal/seal_block.cuh"

namespace oasis::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 2;  // coordinates a thread: head_dim up to 256

// One block of threads an (entry, KV head).
__global__ void __launch_bounds__(kThreads) seal_kernel(SealParams p) {
  __shared__ float scratch[kThreads / 32];
  extern __shared__ uint4 quantized[];
  const int64_t e = blockIdx.x, h = blockIdx.y;
  const int32_t page = p.pages[e * p.kv_heads + h];
  if (page < 0) return;  // no such entry in this step
  const std::byte* slot = p.pool.base + page * p.pool.page_stride + h * p.pool.head_stride;
  const int32_t summary = p.summary_pages ? p.summary_pages[e] : -1;
  if (summary >= 0) {
    write_summary<kColumns>(p.pool, slot, p.block_size, p.head_dim, p.beta, p.summaries.type,
                            p.summaries.base + summary * p.summaries.page_stride + h * p.summaries.head_stride,
                            scratch);
  }
  std::byte* home = p.homes ? p.homes[e * p.kv_heads + h] : nullptr;
  if (!home) return;
  if (p.home_type == p.pool.type) {
    write_block_head(p.pool, slot, p.block_size, p.head_dim, home);
  } else {
    quantize_block_head(p.pool, slot, p.block_size, p.head_dim, home, reinterpret_cast<uint8_t*>(quantized));
  }
}

}  // namespace

void seal_cuda(Stream& stream, const SealParams& params) {
  if (params.entries == 0) return;
  OASIS_CHECK(params.home_type == params.pool.type || params.home_type == KvType::kFp8E4M3 || !params.homes,
              "an FP8 pool's block-heads go to FP8 homes");
  const int64_t unit = params.home_type == KvType::kBf16 ? 8 : 16;  // 16 bytes
  OASIS_CHECK(params.head_dim <= kColumns * kThreads && params.head_dim % unit == 0,
              "head_dim {}: seal takes multiples of {} up to {}", params.head_dim, unit, kColumns * kThreads);
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  SealParams p = params;
  const auto n = static_cast<size_t>(p.entries);
  p.pages = staging.in(p.pages, n * static_cast<size_t>(p.kv_heads));
  p.summary_pages = staging.in(p.summary_pages, n);
  p.homes = staging.in(p.homes, n * static_cast<size_t>(p.kv_heads));
  const bool quantizes = p.home_type != p.pool.type;
  const size_t shared = quantizes ? static_cast<size_t>(2 * p.block_size * (p.head_dim + 1)) : 0;
  const dim3 grid(static_cast<unsigned>(p.entries), static_cast<unsigned>(p.kv_heads));
  seal_kernel<<<grid, kThreads, shared, s.handle()>>>(p);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
