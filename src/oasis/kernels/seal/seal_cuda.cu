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
  const int64_t e = blockIdx.x, h = blockIdx.y;
  const int32_t page = p.pages[e * p.kv_heads + h];
  if (page < 0) return;  // no such entry in this step
  const std::byte* k = p.pool.base + page * p.pool.page_stride + h * p.pool.head_stride;
  const int32_t summary = p.summary_pages ? p.summary_pages[e] : -1;
  if (summary >= 0) {
    write_summary<kColumns>(k, p.pool.token_stride, p.block_size, p.head_dim, p.beta, p.summaries.type,
                            p.summaries.base + summary * p.summaries.page_stride + h * p.summaries.head_stride,
                            scratch);
  }
  if (p.homes && p.homes[e])
    write_block_head(k, p.pool.token_stride, p.pool.v_offset, p.block_size, p.head_dim,
                     p.homes[e] + h * p.home_head_stride);
}

}  // namespace

void seal_cuda(Stream& stream, const SealParams& params) {
  if (params.entries == 0) return;
  OASIS_CHECK(params.pool.type == KvType::kBf16, "seal reads open blocks, which are always bf16");
  OASIS_CHECK(params.head_dim <= kColumns * kThreads && params.head_dim % 8 == 0,
              "head_dim {}: seal takes multiples of 8 up to {}", params.head_dim, kColumns * kThreads);
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  SealParams p = params;
  const auto n = static_cast<size_t>(p.entries);
  p.pages = staging.in(p.pages, n * static_cast<size_t>(p.kv_heads));
  p.summary_pages = staging.in(p.summary_pages, n);
  p.homes = staging.in(p.homes, n);
  const dim3 grid(static_cast<unsigned>(p.entries), static_cast<unsigned>(p.kv_heads));
  seal_kernel<<<grid, kThreads, 0, s.handle()>>>(p);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
