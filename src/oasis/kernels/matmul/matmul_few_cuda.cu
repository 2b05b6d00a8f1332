// y = x W^T for few rows, where the time is that of reading W once. A CTA makes 8 outputs at a time: its warps share
// the columns, 32 at a time in turns, and add their sums up in shared memory. A lane reads 16 bytes of a row of W as
// they lie; which eight of the 32 columns these are does not matter, as long as x is taken in the same order, so both
// are operands of a matrix instruction without a detour. What a lane reads first does not depend on x: it is on its way
// before the kernel that makes x has ended.
#include <algorithm>

#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/cuda/launch.cuh"
#include "oasis/kernels/cuda/mma.cuh"
#include "oasis/kernels/matmul/matmul_cuda.h"

namespace oasis::kernels {
namespace {

constexpr int kTile = 8, kChunk = 32;  // outputs of a tile, columns that a warp takes at once
constexpr int kWarps = 8, kThreads = 32 * kWarps, kCtasPerSm = 2;
constexpr int kPad = 32;  // elements between rows in shared memory, so that rows start in different banks

enum class In { kFloat, kBf16, kNormed };
enum class Out { kStore, kAdd, kGated };

struct Args {
  FewRowsParams p;
  int32_t chunks;  // k / kChunk
  int64_t tiles;   // of one matrix: n / kTile, or half of that where gated
};

__device__ __forceinline__ uint4 load_weights(const uint16_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ uint4 rounded(const float* p) {
  const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
  return {pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w)};
}

// normed [rows, k + kPad] = the norm of the rows of x.
__device__ void norm_rows(const FewRowsParams& p, uint16_t* normed) {
  __shared__ float squares[kWarps][kFewRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto row = [&](int r) {
    return reinterpret_cast<const float4*>(p.x + (int64_t{r / p.per_item} * p.item_rows + r % p.per_item) * p.x_stride);
  };
  for (int r = 0; r < p.rows; ++r) {
    const float4* from = row(r);
    float sum = 0;
#pragma unroll 4
    for (int c = threadIdx.x; c < p.k / 4; c += kThreads) {
      const float4 v = from[c];
      sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sum = warp_sum(sum);
    if (lane == 0) squares[warp][r] = sum;
  }
  __syncthreads();
  const auto* weight = reinterpret_cast<const float4*>(p.norm);
  for (int r = 0; r < p.rows; ++r) {
    const float4* from = row(r);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += squares[w][r];
    const float scale = rsqrtf(sum / static_cast<float>(p.k) + p.eps);
    auto* to = reinterpret_cast<uint2*>(normed + r * (p.k + kPad));
#pragma unroll 4
    for (int c = threadIdx.x; c < p.k / 4; c += kThreads) {
      const float4 v = from[c], g = weight[c];
      to[c] = {pack_bf16(v.x * scale * g.x, v.y * scale * g.y), pack_bf16(v.z * scale * g.z, v.w * scale * g.w)};
    }
  }
  __syncthreads();
}

// Grid: CTAs that share the tiles.
template <In kIn, Out kOut>
__global__ void __launch_bounds__(kThreads, kCtasPerSm) few_rows(const Args a) {
  constexpr int kMatrices = kOut == Out::kGated ? 2 : 1, kAhead = 8 / kMatrices;
  extern __shared__ __align__(16) uint16_t normed[];
  __shared__ float partial[kWarps][kMatrices][kFewRows][kTile];
  const FewRowsParams& p = a.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  start_next();

  // This lane's row of W in a tile is g.
  const auto* w = static_cast<const uint16_t*>(p.w) + int64_t{g} * p.k + t * 8;
  uint4 next[kAhead][kMatrices];
  const auto load = [&](int64_t tile, int chunk) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (chunk + i * kWarps >= a.chunks) break;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        next[i][m] = load_weights(w + (tile + m * a.tiles) * kTile * p.k + int64_t{chunk + i * kWarps} * kChunk);
      }
    }
  };
  int64_t tile = blockIdx.x;
  if (warp < a.chunks) load(tile, warp);
  await_previous();
  if constexpr (kIn == In::kNormed) norm_rows(p, normed);

  const int64_t x_at = int64_t{g} * p.x_stride + t * 8;
  const auto x_of = [&](int chunk) -> uint4 {
    if (g >= p.rows) return {0, 0, 0, 0};
    if constexpr (kIn == In::kNormed) {
      return *reinterpret_cast<const uint4*>(normed + g * (p.k + kPad) + chunk * kChunk + t * 8);
    } else if constexpr (kIn == In::kBf16) {
      return *reinterpret_cast<const uint4*>(p.x_bf16 + x_at + chunk * kChunk);
    } else {
      return rounded(p.x + x_at + chunk * kChunk);
    }
  };
  for (; tile < a.tiles; tile += gridDim.x) {
    float sum[kMatrices][4] = {};
    for (int chunk = warp; chunk < a.chunks; chunk += kAhead * kWarps) {
      uint4 now[kAhead][kMatrices];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) now[i][m] = next[i][m];
      }
      const bool last = chunk + kAhead * kWarps >= a.chunks;
      if (!last) {
        load(tile, chunk + kAhead * kWarps);
      } else if (tile + gridDim.x < a.tiles) {
        load(tile + gridDim.x, warp);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (chunk + i * kWarps >= a.chunks) break;
        const uint4 x = x_of(chunk + i * kWarps);
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          mma_bf16(sum[m], {x.x, 0, x.y, 0}, now[i][m].x, now[i][m].y);
          mma_bf16(sum[m], {x.z, 0, x.w, 0}, now[i][m].z, now[i][m].w);
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      partial[warp][m][g][2 * t] = sum[m][0], partial[warp][m][g][2 * t + 1] = sum[m][1];
    }
    __syncthreads();
    const int r = threadIdx.x / kTile, i = threadIdx.x % kTile;
    if (r >= p.rows) continue;
    float total[kMatrices] = {};
#pragma unroll
    for (int v = 0; v < kWarps; ++v) {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) total[m] += partial[v][m][r][i];
    }
    if constexpr (kOut == Out::kGated) {
      const float gate = total[0], up = total[kMatrices - 1];
      p.gated[r * a.tiles * kTile + tile * kTile + i] = float_to_bf16_bits(gate / (1.0f + expf(-gate)) * up);
    } else {
      float* y = p.y + r * p.y_stride + tile * kTile + i;
      *y = kOut == Out::kAdd ? *y + total[0] : total[0];
    }
  }
}

template <In kIn, Out kOut>
void launch(cuda::CudaStream& s, const FewRowsParams& p) {
  const Args a{p, static_cast<int32_t>(p.k / kChunk), p.n / kTile / (kOut == Out::kGated ? 2 : 1)};
  const auto bytes = kIn == In::kNormed ? static_cast<size_t>(p.rows * (p.k + kPad)) * 2 : 0;
  if (bytes > 0) {
    OASIS_CUDA_CHECK(cudaFuncSetAttribute(few_rows<kIn, kOut>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(bytes)));
  }
  // Each CTA gets as many tiles as any other.
  const int64_t most = int64_t{kCtasPerSm} * s.sms(), rounds = (a.tiles + most - 1) / most;
  const int64_t ctas = (a.tiles + rounds - 1) / rounds;
  launch_early(few_rows<kIn, kOut>, dim3(static_cast<unsigned>(ctas)), kThreads, bytes, s.handle(), a);
}

}  // namespace

void gemm_few_rows(cuda::CudaStream& s, const FewRowsParams& p) {
  OASIS_CHECK(takes_few_rows(p.rows, p.k, p.gated ? p.n / 2 : p.n) && (p.gated == nullptr) != (p.y == nullptr),
              "{} rows by [{}, {}]", p.rows, p.n, p.k);
  if (p.gated) {
    OASIS_CHECK(p.norm, "a gated product norms its input");
    launch<In::kNormed, Out::kGated>(s, p);
  } else if (p.norm) {
    OASIS_CHECK(!p.accumulate, "a product of a norm is not added");
    launch<In::kNormed, Out::kStore>(s, p);
  } else if (p.x_bf16) {
    p.accumulate ? launch<In::kBf16, Out::kAdd>(s, p) : launch<In::kBf16, Out::kStore>(s, p);
  } else {
    p.accumulate ? launch<In::kFloat, Out::kAdd>(s, p) : launch<In::kFloat, Out::kStore>(s, p);
  }
}

}  // namespace oasis::kernels
