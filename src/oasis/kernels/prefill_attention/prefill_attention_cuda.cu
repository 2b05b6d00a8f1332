// Causal attention with tensor cores on any GPU since sm_80, after FlashAttention-2 (arXiv 2307.08691): a block of
// threads owns 64 rows of one query head and walks the keys 64 at a time with a running softmax. Tiles lie at fixed key
// positions, so a row's sum does not depend on how the prompt was cut.
#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/cuda/mma.cuh"
#include "oasis/kernels/prefill_attention/prefill_attention.h"

namespace oasis::kernels {
namespace {

constexpr int kRows = 64, kKeys = 64, kThreads = 128;

template <int D>
struct Tiles {
  static constexpr int kStride = D + 8;  // elements; the pad keeps ldmatrix off one bank
  uint16_t q[kRows * kStride];
  uint16_t k[2][kKeys * kStride];
  uint16_t v[2][kKeys * kStride];
};

// Keys past `last` become zeros: their weight is zero, but zero times NaN would not be.
template <int D>
__device__ void load_keys(uint16_t* to, const bf16* from, int64_t first, int64_t last) {
  constexpr int kVectors = D / 8;
  for (int i = threadIdx.x; i < kKeys * kVectors; i += kThreads) {
    const int64_t key = first + i / kVectors;
    const int column = i % kVectors * 8;
    cp_async_16(to + (i / kVectors) * Tiles<D>::kStride + column, from + min(key, last) * D + column, key <= last);
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads) prefill_kernel(PrefillAttentionParams p, float scale_log2) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& tiles = *reinterpret_cast<Tiles<D>*>(memory);
  constexpr int kStride = Tiles<D>::kStride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row0 = (int64_t{gridDim.x} - 1 - blockIdx.x) * kRows;  // the longest first
  const int64_t head = blockIdx.y, kv_head = head / p.q_per_kv;
  const bf16* k = p.k + kv_head * p.kv_head_stride;
  const bf16* v = p.v + kv_head * p.kv_head_stride;
  const int64_t last = p.first_position + min(row0 + kRows, p.rows) - 1;
  const int64_t key_tiles = last / kKeys + 1;

  load_keys<D>(tiles.k[0], k, 0, last);
  load_keys<D>(tiles.v[0], v, 0, last);
  cp_async_commit();
  for (int i = threadIdx.x; i < kRows * D; i += kThreads) {
    const int64_t r = row0 + i / D;
    tiles.q[i / D * kStride + i % D] = r < p.rows ? float_to_bf16_bits(p.q[r * p.q_stride + head * D + i % D]) : 0;
  }

  float out[D / 8][4] = {};
  float peak[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  const int64_t my_row = row0 + warp * 16 + lane / 4;  // and my_row + 8
  for (int64_t tile = 0; tile < key_tiles; ++tile) {
    const int stage = static_cast<int>(tile % 2);
    if (tile + 1 < key_tiles) {
      load_keys<D>(tiles.k[1 - stage], k, (tile + 1) * kKeys, last);
      load_keys<D>(tiles.v[1 - stage], v, (tile + 1) * kKeys, last);
    }
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();

    float logits[kKeys / 8][4] = {};
#pragma unroll
    for (int c = 0; c < D; c += 16) {
      uint32_t a[4];
      ldmatrix_4(a, tiles.q + (warp * 16 + lane % 16) * kStride + c + lane / 16 * 8);
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        uint32_t b[4];  // keys 16 j .. 16 j + 7 and .. + 15, columns c .. c + 15
        ldmatrix_4(b, tiles.k[stage] + (16 * j + lane / 16 * 8 + lane % 8) * kStride + c + lane / 8 % 2 * 8);
        mma_bf16(logits[2 * j], a, b[0], b[1]);
        mma_bf16(logits[2 * j + 1], a, b[2], b[3]);
      }
    }

    float best[2] = {peak[0], peak[1]};
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t key = tile * kKeys + 8 * j + lane % 4 * 2 + e % 2;
        const bool seen = key <= p.first_position + my_row + e / 2 * 8;
        logits[j][e] = seen ? logits[j][e] * scale_log2 : -INFINITY;
        best[e / 2] = fmaxf(best[e / 2], logits[j][e]);
      }
    }
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      best[half] = fmaxf(best[half], __shfl_xor_sync(0xffffffffu, best[half], 1));
      best[half] = fmaxf(best[half], __shfl_xor_sync(0xffffffffu, best[half], 2));
      rescale[half] = exp2f(peak[half] - best[half]);
      peak[half] = best[half];
      sum[half] *= rescale[half];
    }
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        logits[j][e] = exp2f(logits[j][e] - peak[e / 2]);
        sum[e / 2] += logits[j][e];
      }
    }
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[j][e] *= rescale[e / 2];
    }
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
      const uint32_t a[4] = {
          pack_bf16(logits[2 * j][0], logits[2 * j][1]), pack_bf16(logits[2 * j][2], logits[2 * j][3]),
          pack_bf16(logits[2 * j + 1][0], logits[2 * j + 1][1]), pack_bf16(logits[2 * j + 1][2], logits[2 * j + 1][3])};
#pragma unroll
      for (int c = 0; c < D / 16; ++c) {
        uint32_t b[4];  // keys 16 j .. 16 j + 15, columns 16 c .. + 7 and .. + 15
        ldmatrix_4_transposed(b, tiles.v[stage] + (16 * j + lane % 16) * kStride + 16 * c + lane / 16 * 8);
        mma_bf16(out[2 * c], a, b[0], b[1]);
        mma_bf16(out[2 * c + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();  // the next round overwrites this stage
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    const int64_t r = my_row + half * 8;
    if (r >= p.rows) continue;
    float* to = p.out + r * p.out_stride + head * D + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      to[8 * j] = out[j][2 * half] / sum[half];
      to[8 * j + 1] = out[j][2 * half + 1] / sum[half];
    }
  }
}

template <int D>
void launch(cuda::CudaStream& s, const PrefillAttentionParams& p) {
  constexpr int kBytes = sizeof(Tiles<D>);
  OASIS_CUDA_CHECK(cudaFuncSetAttribute(prefill_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(static_cast<unsigned>((p.rows + kRows - 1) / kRows), static_cast<unsigned>(p.kv_heads * p.q_per_kv));
  const float scale_log2 = 1.4426950408889634f / sqrtf(static_cast<float>(D));
  prefill_kernel<D><<<grid, kThreads, kBytes, s.handle()>>>(p, scale_log2);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void prefill_attention_cuda(Stream& stream, const PrefillAttentionParams& params) {
  if (params.rows == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  PrefillAttentionParams p = params;
  const int64_t width = p.kv_heads * p.q_per_kv * p.head_dim;
  p.q = staging.in(p.q, static_cast<size_t>((p.rows - 1) * p.q_stride + width));
  p.out = staging.inout(p.out, static_cast<size_t>((p.rows - 1) * p.out_stride + width));
  const auto kv = static_cast<size_t>((p.kv_heads - 1) * p.kv_head_stride + (p.first_position + p.rows) * p.head_dim);
  p.k = staging.in(p.k, kv);
  p.v = staging.in(p.v, kv);
  switch (p.head_dim) {
    case 16:
      return launch<16>(s, p);
    case 64:
      return launch<64>(s, p);
    case 80:
      return launch<80>(s, p);
    case 96:
      return launch<96>(s, p);
    case 128:
      return launch<128>(s, p);
    case 256:
      return launch<256>(s, p);
  }
  OASIS_CHECK(false, "head_dim {}: the GPU's prefill attention takes 16, 64, 80, 96, 128 or 256", p.head_dim);
}

}  // namespace oasis::kernels
