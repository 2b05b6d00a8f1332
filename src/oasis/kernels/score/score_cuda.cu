// Scores on the GPU: the speed of reading the summaries. A warp looks after one KV head and goes through its part of an
// item's blocks, eight at a time: all loads first, then the products, then one sum over the lanes for the eight of
// them. The heads of a page lie side by side and are read by neighbouring warps.
#include <algorithm>
#include <cmath>
#include <vector>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/score/score.h"

namespace oasis::kernels {
namespace {

using namespace oasis::cuda;

constexpr int kWarps = 8;
constexpr int kBatch = 8;               // blocks that a group of lanes scores side by side
constexpr int kPiece = 8;               // elements of a summary that a lane reads at once
constexpr int kWeightBytes = 32 << 10;  // of shared memory
constexpr uint32_t kAll = 0xffffffffu;

struct Args {
  ScoreParams p;  // every pointer on the device
  int chunk;      // blocks a CTA scores, a multiple of 2 * kBatch
  int rows;       // of queries whose weights fit in shared memory
};

// How the 2 * kHeadDim elements of a block's summary (upper row, then lower) are spread over lanes: piece i belongs to
// lane i % kLanes. With 16 lanes a warp scores two blocks at a time.
template <int kHeadDim>
struct Spread {
  static constexpr int kPieces = 2 * kHeadDim / kPiece;
  static constexpr int kLanes = kPieces <= 16 ? 16 : 32;
  static constexpr int kPerLane = (kPieces + kLanes - 1) / kLanes;
  static constexpr int kBlocks = kBatch * 32 / kLanes;           // a warp's batch
  static constexpr int kRowFloats = kPerLane * kLanes * kPiece;  // weights of one row, with zeros behind
};

// One lane's piece of a summary as it lies in memory.
template <KvType kType>
struct Piece;
template <>
struct Piece<KvType::kBf16> {
  uint32_t words[4];
  __device__ float dot(const float (&w)[kPiece]) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = words[i];
      sum = fmaf(w[2 * i], __uint_as_float(word << 16), sum);
      sum = fmaf(w[2 * i + 1], __uint_as_float(word & 0xffff0000u), sum);
    }
    return sum;
  }
};
template <>
struct Piece<KvType::kFp8E4M3> {
  uint32_t words[2];
  float scale;
  __device__ float dot(const float (&w)[kPiece]) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
      const float2 x = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      sum = fmaf(w[2 * i], x.x, sum);
      sum = fmaf(w[2 * i + 1], x.y, sum);
    }
    return __fmul_rn(sum, scale);  // not fused with the sum that it enters
  }
};

// kWide: the pieces are aligned to their size; otherwise to 4 bytes.
template <int kHeadDim, KvType kType, bool kWide>
__device__ __forceinline__ void load(Piece<kType>& piece, const std::byte* rows, int index) {
  constexpr int kWords = sizeof(piece.words) / 4;
  const std::byte* from = rows + (kType == KvType::kFp8E4M3 ? 8 : 0) + index * static_cast<int>(sizeof(piece.words));
  if constexpr (kWide && kWords == 4) {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(from));
    piece.words[0] = v.x, piece.words[1] = v.y, piece.words[2] = v.z, piece.words[3] = v.w;
  } else if constexpr (kWide) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
    piece.words[0] = v.x, piece.words[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) piece.words[i] = __ldg(reinterpret_cast<const uint32_t*>(from) + i);
  }
  if constexpr (kType == KvType::kFp8E4M3)
    piece.scale = __ldg(reinterpret_cast<const float*>(rows) + (index * kPiece >= kHeadDim ? 1 : 0));
}

// Weights of rows [first, first + rows): sum_g relu(q_g), then -sum_g relu(-q_g). A piece's first four floats and its
// last four lie in two planes, so that lanes read 16 bytes beside each other.
template <int kHeadDim>
__device__ void collapse(const ScoreParams& p, int first, int rows, int head, float* weights) {
  using S = Spread<kHeadDim>;
  for (int i = threadIdx.x % 32; i < rows * S::kRowFloats; i += 32) {
    const int row = i / S::kRowFloats, element = i % S::kRowFloats, index = element % kHeadDim;
    float sum = 0;
    if (element < 2 * kHeadDim) {
      const float* q = p.q + (first + row) * p.q_stride + static_cast<int64_t>(head) * p.q_per_kv * kHeadDim + index;
      for (int g = 0; g < p.q_per_kv; ++g) {
        const float x = q[static_cast<int64_t>(g) * kHeadDim];
        sum += element < kHeadDim ? fmaxf(x, 0.0f) : fminf(x, 0.0f);
      }
    }
    const int piece = element / kPiece, within = element % kPiece;
    weights[row * S::kRowFloats + (within / 4) * (S::kRowFloats / 2) + piece * 4 + within % 4] = sum;
  }
  __syncwarp();
}

// One weight row times the lane's pieces of kBatch blocks, summed over the lanes. Each block's sum is added up in the
// same order wherever it stands in the batch. Lane l of a group gets the sum of block l / (kLanes / kBatch).
template <int kHeadDim, KvType kType>
__device__ __forceinline__ float score_row(const Piece<kType> (&pieces)[kBatch][Spread<kHeadDim>::kPerLane],
                                           const float* weights) {
  using S = Spread<kHeadDim>;
  const int lane = threadIdx.x % S::kLanes;
  float sum[kBatch] = {};
#pragma unroll
  for (int c = 0; c < S::kPerLane; ++c) {
    const float4 low = *reinterpret_cast<const float4*>(weights + (c * S::kLanes + lane) * 4);
    const float4 high = *reinterpret_cast<const float4*>(weights + S::kRowFloats / 2 + (c * S::kLanes + lane) * 4);
    const float w[kPiece] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int b = 0; b < kBatch; ++b) sum[b] += pieces[b][c].dot(w);
  }
  // Lanes whose bit is set keep the upper half of the blocks, the others the lower half.
  int step = S::kLanes / 2;
#pragma unroll
  for (int kept = kBatch / 2; kept > 0; kept /= 2, step /= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int b = 0; b < kept; ++b) {
      const float give = upper ? sum[b] : sum[b + kept];
      const float keep = upper ? sum[b + kept] : sum[b];
      sum[b] = keep + __shfl_xor_sync(kAll, give, step);
    }
  }
#pragma unroll
  for (; step > 0; step /= 2) sum[0] += __shfl_xor_sync(kAll, sum[0], step);
  return sum[0];
}

// Grid: [chunks of blocks, items, heads / kWarps].
template <int kHeadDim, KvType kType, bool kWide>
__global__ void __launch_bounds__(32 * kWarps, kHeadDim <= 128 ? 3 : 2) score_blocks(const Args a) {
  using S = Spread<kHeadDim>;
  extern __shared__ __align__(16) float shared[];
  const ScoreParams& p = a.p;
  const int item = blockIdx.y,
            heads = min(static_cast<int>(p.kv_heads) - static_cast<int>(blockIdx.z) * kWarps, kWarps);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = p.row_begin[item], rows = p.row_begin[item + 1] - first;
  const int begin = blockIdx.x * a.chunk, end = min(p.candidates[item], begin + a.chunk);
  if (rows <= 0 || begin >= end) return;

  // Fewer heads than warps: several warps share a head, batch by batch.
  const int warps_a_head = kWarps / heads, share = warp / heads;
  if (share >= warps_a_head) return;
  const int head = blockIdx.z * kWarps + warp % heads;
  const int32_t* pages = p.summary_pages[item];
  const std::byte* summaries = p.summaries.base + head * p.summaries.head_stride;
  float* scores = p.scores + (static_cast<int64_t>(item) * p.kv_heads + head) * p.score_stride;
  float* weights = shared + warp * a.rows * S::kRowFloats;
  const int group = lane / S::kLanes, piece = lane % S::kLanes;  // of lanes
  // The block of its batch whose sum the lane ends up with; the first of the lanes that do writes it.
  constexpr int kShared = S::kLanes / kBatch;
  const int owned = group * kBatch + piece / kShared;
  const bool writes = piece % kShared == 0;

  for (int row = 0; row < rows; row += a.rows) {
    const int count = min(a.rows, rows - row);
    __syncwarp();
    collapse<kHeadDim>(p, first + row, count, head, weights);
    const int step = warps_a_head * S::kBlocks;
    int32_t page = 0, next_page = pages[min(begin + share * S::kBlocks + lane % S::kBlocks, end - 1)];
    for (int block = begin + share * S::kBlocks; block < end; block += step) {
      page = next_page;
      next_page = pages[min(block + step + lane % S::kBlocks, end - 1)];
      float best = 0;
      // Further rows find the summaries in the L1 cache; to hold them in registers costs more.
#pragma unroll 1
      for (int r = 0; r < count; ++r) {
        Piece<kType> pieces[kBatch][S::kPerLane];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const std::byte* rows_of = summaries + __shfl_sync(kAll, page, group * kBatch + b) * p.summaries.page_stride;
#pragma unroll
          for (int c = 0; c < S::kPerLane; ++c) {
            // Lanes without a piece read the last one; their weights are zero.
            load<kHeadDim, kType, kWide>(pieces[b][c], rows_of, min(c * S::kLanes + piece, S::kPieces - 1));
          }
        }
        const float score = score_row<kHeadDim, kType>(pieces, weights + r * S::kRowFloats);
        best = r == 0 ? score : fmaxf(best, score);
      }
      if (writes && block + owned < end) {
        if (row > 0) best = fmaxf(best, scores[block + owned]);
        scores[block + owned] = best;
      }
    }
  }
}

// Any head_dim, any alignment: a warp a block and head.
__global__ void score_any(const Args a) {
  const ScoreParams& p = a.p;
  const int item = blockIdx.y, lane = threadIdx.x % 32, d = static_cast<int>(p.head_dim);
  const int first = p.row_begin[item], rows = p.row_begin[item + 1] - first;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t block = at / p.kv_heads, head = at % p.kv_heads;
  if (rows <= 0 || block >= p.candidates[item]) return;
  const std::byte* summary =
      p.summaries.base + p.summary_pages[item][block] * p.summaries.page_stride + head * p.summaries.head_stride;
  const bool fp8 = p.summaries.type == KvType::kFp8E4M3;
  float best = 0;
  for (int row = first; row < first + rows; ++row) {
    const float* q = p.q + row * p.q_stride + head * p.q_per_kv * d;
    float sum = 0;
    for (int i = lane; i < 2 * d; i += 32) {
      float weight = 0;
      for (int g = 0; g < p.q_per_kv; ++g) {
        const float x = q[static_cast<int64_t>(g) * d + i % d];
        weight += i < d ? fmaxf(x, 0.0f) : fminf(x, 0.0f);
      }
      float value;
      if (fp8) {
        value = fp8_bits_to_float(static_cast<uint8_t>(summary[8 + i])) *
                reinterpret_cast<const float*>(summary)[i < d ? 0 : 1];
      } else {
        value = bf16_bits_to_float(reinterpret_cast<const uint16_t*>(summary)[i]);
      }
      sum = fmaf(weight, value, sum);
    }
    sum = warp_sum(sum);
    best = row == first ? sum : fmaxf(best, sum);
  }
  if (lane == 0) p.scores[(item * p.kv_heads + head) * p.score_stride + block] = best;
}

template <int kHeadDim, KvType kType, bool kWide>
void launch(Args a, CudaStream& stream) {
  constexpr int kRowBytes = Spread<kHeadDim>::kRowFloats * static_cast<int>(sizeof(float));
  a.rows = kWeightBytes / (kWarps * kRowBytes);
  static_assert(kWeightBytes >= kWarps * kRowBytes);
  const int64_t head_groups = (a.p.kv_heads + kWarps - 1) / kWarps;
  // Chunks as long as leaves the GPU a few CTAs a multiprocessor.
  const int64_t most = a.p.score_stride * a.p.items * head_groups / (int64_t{8} * stream.sms());
  a.chunk = static_cast<int>(std::clamp<int64_t>(most / 16 * 16, 16, 128));
  const dim3 grid(static_cast<unsigned>((a.p.score_stride + a.chunk - 1) / a.chunk), static_cast<unsigned>(a.p.items),
                  static_cast<unsigned>(head_groups));
  score_blocks<kHeadDim, kType, kWide><<<grid, 32 * kWarps, kWarps * a.rows * kRowBytes, stream.handle()>>>(a);
}

template <int kHeadDim>
bool launch(const Args& a, CudaStream& stream) {
  const SummaryView& v = a.p.summaries;
  const bool bf16 = v.type == KvType::kBf16;
  const auto alignment = reinterpret_cast<uintptr_t>(v.base) | v.page_stride | v.head_stride;
  if (alignment % (bf16 ? 16 : 8) == 0) {
    bf16 ? launch<kHeadDim, KvType::kBf16, true>(a, stream) : launch<kHeadDim, KvType::kFp8E4M3, true>(a, stream);
  } else if (alignment % 4 == 0) {
    bf16 ? launch<kHeadDim, KvType::kBf16, false>(a, stream) : launch<kHeadDim, KvType::kFp8E4M3, false>(a, stream);
  } else {
    return false;
  }
  return true;
}

bool launch_known(const Args& a, CudaStream& stream) {
  switch (a.p.head_dim) {
    case 64:
      return launch<64>(a, stream);
    case 80:
      return launch<80>(a, stream);
    case 96:
      return launch<96>(a, stream);
    case 128:
      return launch<128>(a, stream);
    case 256:
      return launch<256>(a, stream);
    default:
      return false;
  }
}

// Moves what lies in host memory to the device. `tables` gets the page tables' addresses there.
void stage(ScoreParams& p, Staging& staging, std::vector<const int32_t*>& tables) {
  if (!Staging::passes(p.summary_pages, 1)) {
    tables.assign(p.summary_pages, p.summary_pages + p.items);
    for (int64_t i = 0; i < p.items; ++i) {
      if (Staging::passes(tables[i], 1)) continue;
      OASIS_CHECK(!device_accessible(p.candidates), "page tables in host memory need candidates there too");
      tables[i] = staging.in(tables[i], p.candidates[i]);
    }
    p.summary_pages = staging.in(static_cast<const int32_t* const*>(tables.data()), tables.size());
  }
  if (device_accessible(p.row_begin)) {
    OASIS_CHECK(Staging::passes(p.q, 1), "row_begin lies on the device: q must too");
  } else {
    const int64_t rows = p.row_begin[p.items];
    p.q = staging.in(p.q, rows == 0 ? 0 : (rows - 1) * p.q_stride + p.kv_heads * p.q_per_kv * p.head_dim);
    p.row_begin = staging.in(p.row_begin, p.items + 1);
  }
  p.candidates = staging.in(p.candidates, p.items);
  p.scores = staging.inout(p.scores, p.items * p.kv_heads * p.score_stride);
}

}  // namespace

void score_cuda(Stream& stream, const ScoreParams& params) {
  OASIS_CHECK(params.head_dim > 0, "head_dim is {}", params.head_dim);
  OASIS_CHECK(Staging::passes(params.summaries.base, 1), "the summaries must lie in device memory");
  if (params.items == 0 || params.score_stride == 0) return;
  OASIS_CHECK(params.items <= 65535, "{} items in one call, the limit is 65535", params.items);
  CudaStream& s = as_cuda(stream);
  Staging staging(s);
  std::vector<const int32_t*> tables;
  Args a{.p = params};
  stage(a.p, staging, tables);
  if (!launch_known(a, s)) {
    const int64_t ctas = (params.score_stride * params.kv_heads + kWarps - 1) / kWarps;
    score_any<<<dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(params.items)), 32 * kWarps, 0, s.handle()>>>(
        a);
  }
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
