#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/seal/seal.h"

namespace oasis::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 2;  // coordinates a thread: head_dim up to 256

// Writes a row as FP8 with one scale: the largest value becomes the largest FP8 number. All threads take part.
__device__ void write_fp8(const float* x, int64_t d, float* scale_out, std::byte* out, float* scratch) {
  float peak = 0;
  bool has_nan = false;
  for (int c = 0; c < kColumns; ++c) {
    if (threadIdx.x + c * kThreads >= d) continue;
    peak = fmaxf(peak, fabsf(x[c]));
    has_nan |= isnan(x[c]);
  }
  has_nan = __syncthreads_or(has_nan);
  for (int offset = 16; offset > 0; offset /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, offset));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = peak;
  __syncthreads();
  peak = fmaxf(fmaxf(scratch[0], scratch[1]), fmaxf(scratch[2], scratch[3]));
  __syncthreads();
  const float scale = has_nan ? NAN : peak / 448.0f;
  if (threadIdx.x == 0) *scale_out = scale;
  for (int c = 0; c < kColumns; ++c) {
    const int64_t i = threadIdx.x + c * kThreads;
    if (i < d) reinterpret_cast<uint8_t*>(out)[i] = scale != 0 ? float_to_fp8_bits(x[c] / scale) : 0;
  }
}

__device__ void write_box(const SealParams& p, const std::byte* k, std::byte* rows, float* scratch) {
  const int64_t d = p.head_dim;
  float upper[kColumns] = {}, lower[kColumns] = {};
  for (int c = 0; c < kColumns; ++c) {
    const int64_t i = threadIdx.x + c * kThreads;
    if (i >= d) continue;
    float most = -INFINITY, least = INFINITY;
    for (int64_t t = 0; t < p.block_size; ++t) {
      const float x = bf16_bits_to_float(reinterpret_cast<const uint16_t*>(k + t * p.pool.token_stride)[i]);
      most = (x > most) | (x != x) ? x : most;  // a NaN key shows in the scores
      least = (x < least) | (x != x) ? x : least;
    }
    const float inset = (1.0f - p.beta) * (0.5f * most - 0.5f * least);
    upper[c] = most - inset;
    lower[c] = least + inset;
    if (p.summaries.type == KvType::kBf16) {
      reinterpret_cast<uint16_t*>(rows)[i] = float_to_bf16_bits(upper[c]);
      reinterpret_cast<uint16_t*>(rows)[d + i] = float_to_bf16_bits(lower[c]);
    }
  }
  if (p.summaries.type == KvType::kBf16) return;
  auto* scales = reinterpret_cast<float*>(rows);
  write_fp8(upper, d, &scales[0], rows + 8, scratch);
  write_fp8(lower, d, &scales[1], rows + 8 + d, scratch);
}

// K rows then V rows, 16 bytes a thread.
__device__ void write_home(const SealParams& p, const std::byte* k, std::byte* home) {
  const int64_t row_vectors = p.head_dim * 2 / 16, half_vectors = p.block_size * row_vectors;
  for (int64_t i = threadIdx.x; i < 2 * half_vectors; i += kThreads) {
    const int64_t in_half = i % half_vectors, t = in_half / row_vectors, column = in_half % row_vectors;
    const std::byte* from = k + (i < half_vectors ? 0 : p.pool.v_offset) + t * p.pool.token_stride + column * 16;
    reinterpret_cast<uint4*>(home)[i] = *reinterpret_cast<const uint4*>(from);
  }
}

// One block of threads an (entry, KV head).
__global__ void __launch_bounds__(kThreads) seal_kernel(SealParams p) {
  __shared__ float scratch[kThreads / 32];
  const int64_t e = blockIdx.x, h = blockIdx.y;
  const int32_t page = p.pages[e * p.kv_heads + h];
  if (page < 0) return;  // no such entry in this step
  const std::byte* k = p.pool.base + page * p.pool.page_stride + h * p.pool.head_stride;
  const int32_t summary = p.summary_pages ? p.summary_pages[e] : -1;
  if (summary >= 0) {
    write_box(p, k, p.summaries.base + summary * p.summaries.page_stride + h * p.summaries.head_stride, scratch);
  }
  if (p.homes && p.homes[e]) write_home(p, k, p.homes[e] + h * p.home_head_stride);
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
