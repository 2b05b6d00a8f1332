// Decode attention on the GPU. A CTA attends one split of a list, kSplitEntries entries, with tiles of 16 queries, a
// warp each, that share the keys and values in shared memory; a second kernel merges the splits of each query in
// ascending order. Keys and values travel through a ring of stages by asynchronous copies, several stages ahead of
// the arithmetic, which is bf16 matrix instructions on 32 keys at a time with an online softmax.
#include <algorithm>
#include <climits>
#include <cmath>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/attention/attention_tile.cuh"
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/cuda/launch.cuh"

namespace oasis::kernels {
namespace {

using namespace oasis::cuda;
using namespace attention_tile;

struct Args {
  AttentionParams p;    // every pointer on the device
  int32_t splits;       // a list: ceil(list_stride / kSplitEntries)
  int32_t max_queries;  // a group: its rows times q_per_kv
  float scale;          // from q . k to a base-2 logit
  // Partial sums: of each query the greatest base-2 logit (-infinity: no key seen) and the sum of 2^(logit - max); the
  // sum of values so weighted.
  float2* max_sum;  // [groups * kv_heads, splits, max_queries]
  float* acc;       // [groups * kv_heads, splits, max_queries, head_dim]

  __device__ int64_t partial(int64_t list, int64_t split, int64_t query) const {
    return (list * splits + split) * max_queries + query;
  }
};

// Grid: [groups * kv_heads, splits, tile groups].
template <int kHeadDim, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) attend_splits(const Args a, int tile_groups) {
  using L = Layout<kHeadDim, kWarps>;
  extern __shared__ __align__(16) std::byte shared[];
  const AttentionParams& p = a.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tile_group = static_cast<int>(blockIdx.x % tile_groups);
  const int split = static_cast<int>(blockIdx.x / tile_groups % a.splits);
  const int64_t list = blockIdx.x / tile_groups / a.splits;
  const int64_t group = list / p.kv_heads;
  const int head = static_cast<int>(list % p.kv_heads);

  // Read before it is known whether they are there, which saves a round trip to memory.
  Chunks chunks{0, 0, static_cast<int>(p.block_size / kChunkKeys), 0};
  const int64_t entry = static_cast<int64_t>(split) * kSplitEntries + lane;
  if (lane < kSplitEntries && entry < p.list_stride) {
    chunks.block = p.entries[list * p.list_stride + entry].block;
    chunks.page = p.entries[list * p.list_stride + entry].page;
  }
  const int first_row = p.row_begin[group];
  const int queries = (p.row_begin[group + 1] - first_row) * static_cast<int>(p.q_per_kv);
  chunks.count = min(p.entry_count[list] - split * kSplitEntries, kSplitEntries) * chunks.per_entry;
  if (chunks.count <= 0) return;

  const int32_t* positions = p.positions + first_row;
  Tile<kHeadDim> t;
  t.first_query = (tile_group * kWarps + warp) * kTileQueries;
  t.lowest = INT_MAX;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = t.first_query + lane / 4 + 8 * half;
    t.row[half] = query / static_cast<int>(p.q_per_kv);
    const int32_t position = query < queries ? positions[t.row[half]] : -1;
    t.position[half] = position < 0 ? INT_MAX : position;
    t.lowest = min(t.lowest, t.position[half]);
  }
  t.lowest = __reduce_min_sync(kAll, t.lowest);
  const bool active = t.lowest != INT_MAX;
  if (!__syncthreads_or(active)) return;

  const std::byte* slots = p.pool.base + head * p.pool.head_stride;
#pragma unroll
  for (int tile = 0; tile < L::kStages - 1; ++tile)
    load_tile<kHeadDim, kWarps>(p, chunks, slots, tile, shared + tile * L::kStageBytes);

  std::byte* own = shared + L::kQueriesAt + warp * L::kQueryBytes;
  const std::byte* own_queries = own + (lane / 8 % 2 * 8 + lane % 8) * L::kPitch + lane / 16 * 16;
  uint32_t in_registers[kHeadDim / 16][4];
  if (active) {
    stage_queries<kHeadDim>(p, first_row, head, t.first_query, queries, own);
    if constexpr (L::kQueriesInRegisters) {
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k) ldmatrix_4(in_registers[k], own_queries + k * 32);
    }
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) t.acc[j][0] = t.acc[j][1] = t.acc[j][2] = t.acc[j][3] = 0;
  }

  const int last_row = (min(t.first_query + kTileQueries, queries) - 1) / static_cast<int>(p.q_per_kv);
  const int tiles = (chunks.count + 1) / 2;
  for (int tile = 0, stage = 0; tile < tiles; ++tile) {
    cp_async_wait<L::kStages - 2>();  // this thread's part of the tile is there,
    __syncthreads();                  // everyone's is, and everyone is done with the stage before
    const int behind = stage == 0 ? L::kStages - 1 : stage - 1;
    load_tile<kHeadDim, kWarps>(p, chunks, slots, tile + L::kStages - 1, shared + behind * L::kStageBytes);
    if (active) {
      attend_tile(t, chunks, tile, shared + stage * L::kStageBytes, own_queries, in_registers, a.scale, positions,
                  last_row);
    }
    stage = stage + 1 == L::kStages ? 0 : stage + 1;
  }
  if (!active) return;

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    t.sum[half] += __shfl_xor_sync(kAll, t.sum[half], 1);
    t.sum[half] += __shfl_xor_sync(kAll, t.sum[half], 2);
    if (t.position[half] == INT_MAX) continue;
    const int64_t at = a.partial(list, split, t.first_query + lane / 4 + 8 * half);
    if (lane % 4 == 0) a.max_sum[at] = make_float2(__fmul_rn(t.max[half], a.scale), t.sum[half]);
    float* acc = a.acc + at * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j)
      *reinterpret_cast<float2*>(acc + 8 * j) = make_float2(t.acc[j][2 * half], t.acc[j][2 * half + 1]);
  }
}

constexpr int kMergeWarps = 4;

// A warp a query: grid [groups * kv_heads * max_queries / kMergeWarps].
__global__ void __launch_bounds__(32 * kMergeWarps) merge_splits(const Args a, int64_t all_queries) {
  await_previous();  // launched before the splits are done
  const AttentionParams& p = a.p;
  const int lane = threadIdx.x % 32, q_per_kv = static_cast<int>(p.q_per_kv), d = static_cast<int>(p.head_dim);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMergeWarps + threadIdx.x / 32;
  if (at >= all_queries) return;
  const int64_t list = at / a.max_queries, group = list / p.kv_heads;
  const int query = static_cast<int>(at % a.max_queries);
  const int64_t row = p.row_begin[group] + query / q_per_kv;
  if (row >= p.row_begin[group + 1]) return;
  const int64_t out_at = row * p.out_stride + (list % p.kv_heads * q_per_kv + query % q_per_kv) * d;
  const int splits =
      p.positions[row] < 0 ? 0 : min((p.entry_count[list] + kSplitEntries - 1) / kSplitEntries, a.splits);

  float max = -INFINITY;
  for (int s = lane; s < splits; s += 32) max = fmaxf(max, a.max_sum[a.partial(list, s, query)].x);
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(kAll, max, step));
  if (max == -INFINITY) max = 0;
  for (int j = 4 * lane; j < d; j += 128) {
    float sum = 0;
    float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int s = 0; s < splits; ++s) {
      const int64_t from = a.partial(list, s, query);
      const float2 max_sum = a.max_sum[from];
      const float4 x = *reinterpret_cast<const float4*>(a.acc + from * d + j);
      const float weight = exp2_approx(max_sum.x - max);
      sum = fmaf(weight, max_sum.y, sum);
      acc = make_float4(fmaf(weight, x.x, acc.x), fmaf(weight, x.y, acc.y), fmaf(weight, x.z, acc.z),
                        fmaf(weight, x.w, acc.w));
    }
    const float inverse = sum == 0 ? 0 : 1 / sum;  // no key seen: zeros
    acc = make_float4(acc.x * inverse, acc.y * inverse, acc.z * inverse, acc.w * inverse);
    float* out = p.out + out_at + j;
    out[0] = acc.x, out[1] = acc.y, out[2] = acc.z, out[3] = acc.w;
  }
}

template <int kHeadDim, int kWarps>
void launch_splits(const Args& a, int tiles, cudaStream_t stream) {
  constexpr int kBytes = Layout<kHeadDim, kWarps>::kBytes;
  const int tile_groups = (tiles + kWarps - 1) / kWarps;
  const int64_t ctas = a.p.groups * a.p.kv_heads * a.splits * tile_groups;
  OASIS_CHECK(ctas <= INT_MAX, "{} lists of {} splits are too many for one launch", a.p.groups * a.p.kv_heads,
              a.splits);
  OASIS_CUDA_CHECK(
      cudaFuncSetAttribute(attend_splits<kHeadDim, kWarps>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  attend_splits<kHeadDim, kWarps><<<static_cast<unsigned>(ctas), 32 * kWarps, kBytes, stream>>>(a, tile_groups);
}

template <int kHeadDim>
void launch_splits(const Args& a, cudaStream_t stream) {
  const int tiles = (a.max_queries + kTileQueries - 1) / kTileQueries;
  // Several tiles share what is read, in warps of one CTA; a row's sums are the same in either kernel.
  if (tiles == 1) {
    launch_splits<kHeadDim, 1>(a, tiles, stream);
  } else {
    launch_splits<kHeadDim, kHeadDim <= 128 ? 4 : 2>(a, tiles, stream);
  }
}

// The largest number of rows of a group.
int64_t most_rows(const AttentionParams& p) {
  if (p.max_group_rows > 0) return p.max_group_rows;
  OASIS_CHECK(!device_accessible(p.row_begin), "max_group_rows must be given where row_begin lies on the device");
  int64_t most = 0;
  for (int64_t g = 0; g < p.groups; ++g) most = std::max<int64_t>(most, p.row_begin[g + 1] - p.row_begin[g]);
  return most;
}

void check(const AttentionParams& p) {
  OASIS_CHECK(p.pool.type == KvType::kBf16, "attention reads bf16 slots, this pool's KvType is {}",
              static_cast<int>(p.pool.type));
  OASIS_CHECK(p.block_size > 0 && p.block_size % kChunkKeys == 0, "block size {}: must be a multiple of {}",
              p.block_size, kChunkKeys);
  const auto base = reinterpret_cast<uintptr_t>(p.pool.base);
  const PoolView& v = p.pool;
  OASIS_CHECK((base | v.page_stride | v.head_stride | v.token_stride | v.v_offset) % 16 == 0,
              "a pool of strides {}, {}, {}, {}: they and its address must be multiples of 16", v.page_stride,
              v.head_stride, v.token_stride, v.v_offset);
  OASIS_CHECK(v.token_stride * p.block_size <= INT_MAX, "a token stride of {} bytes is too large", v.token_stride);
  OASIS_CHECK(Staging::passes(v.base, 1), "the pool must lie in device memory");
}

// Moves what lies in host memory to the device.
void stage(AttentionParams& p, Staging& staging) {
  const int64_t width = p.kv_heads * p.q_per_kv * p.head_dim, lists = p.groups * p.kv_heads;
  if (device_accessible(p.row_begin)) {
    OASIS_CHECK(Staging::passes(p.positions, 1) && Staging::passes(p.q, 1) && Staging::passes(p.out, 1),
                "row_begin lies on the device: positions, q and out must too");
  } else {
    const int64_t rows = p.row_begin[p.groups];
    p.row_begin = staging.in(p.row_begin, p.groups + 1);
    p.positions = staging.in(p.positions, rows);
    p.q = staging.in(p.q, rows == 0 ? 0 : (rows - 1) * p.q_stride + width);
    p.out = staging.inout(p.out, rows == 0 ? 0 : (rows - 1) * p.out_stride + width);
  }
  p.entries = staging.in(p.entries, lists * p.list_stride);
  p.entry_count = staging.in(p.entry_count, lists);
}

}  // namespace

void attention_cuda(Stream& stream, const AttentionParams& params) {
  check(params);
  if (params.groups == 0) return;
  CudaStream& s = as_cuda(stream);
  Staging staging(s);
  Args a{.p = params};
  const int64_t max_queries = most_rows(params) * params.q_per_kv;
  if (max_queries == 0) return;
  stage(a.p, staging);
  a.splits = static_cast<int32_t>((params.list_stride + kSplitEntries - 1) / kSplitEntries);
  a.max_queries = static_cast<int32_t>(max_queries);
  a.scale = 1.44269504f / std::sqrt(static_cast<float>(params.head_dim));
  const int64_t all_queries = params.groups * params.kv_heads * max_queries, partials = all_queries * a.splits;
  std::byte* memory = s.workspace(partials * (params.head_dim * sizeof(float) + sizeof(float2)));
  a.acc = reinterpret_cast<float*>(memory);
  a.max_sum = reinterpret_cast<float2*>(a.acc + partials * params.head_dim);

  if (a.splits > 0) {
    switch (params.head_dim) {
      case 64:
        launch_splits<64>(a, s.handle());
        break;
      case 80:
        launch_splits<80>(a, s.handle());
        break;
      case 96:
        launch_splits<96>(a, s.handle());
        break;
      case 128:
        launch_splits<128>(a, s.handle());
        break;
      case 256:
        launch_splits<256>(a, s.handle());
        break;
      default:
        OASIS_CHECK(false, "head_dim {}: the CUDA backend has 64, 80, 96, 128 and 256", params.head_dim);
    }
    OASIS_CUDA_CHECK(cudaGetLastError());
  }
  const int64_t ctas = (all_queries + kMergeWarps - 1) / kMergeWarps;
  launch_early(merge_splits, dim3(static_cast<unsigned>(ctas)), 32 * kMergeWarps, 0, s.handle(), a, all_queries);
}

}  // namespace oasis::kernels
