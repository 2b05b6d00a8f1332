// Decode attention on the GPU. A CTA attends one split of a list, kSplitEntries entries, with tiles of 16 queries, a
// warp each, that share the keys and values in shared memory; a second kernel merges the splits of each query in
// ascending order. Keys and values travel through a ring of stages by asynchronous copies, several stages ahead of
// the arithmetic, which is bf16 matrix instructions on 32 keys at a time with an online softmax.
#include <algorithm>
#include <climits>
#include <cmath>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/attention/attention_cuda.cuh"
#include "oasis/kernels/cuda/mma.cuh"

namespace oasis::kernels {
namespace {

using namespace oasis::cuda;

constexpr int kSplitEntries = AttentionParams::kCudaSplitEntries;
constexpr int kChunkKeys = 16;  // a chunk is a block, or a part of a larger one
constexpr int kTileKeys = 2 * kChunkKeys;
constexpr int kTileQueries = 16;
constexpr uint32_t kAll = 0xffffffffu;

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

template <int kHeadDim, int kWarps>
struct Layout {
  // Of a row of keys, values or queries in shared memory, in bytes: an odd multiple of 16, so that eight rows' pieces
  // of 16 bytes lie in different banks.
  static constexpr int kPitch = 2 * kHeadDim + 16;
  static constexpr int kStageBytes = 2 * kTileKeys * kPitch;  // rows of keys, then rows of values
  static constexpr int kStages = kHeadDim <= 64 ? 6 : kHeadDim <= 96 ? 5 : kHeadDim <= 128 ? 4 : 2;
  static constexpr int kQueryBytes = kTileQueries * kPitch;  // a warp
  static constexpr int kBytes = kStages * kStageBytes + kWarps * kQueryBytes;
  static constexpr bool kQueriesInRegisters = kHeadDim <= 128;
};

// The chunks of one split; every lane of every warp holds the same split.
struct Chunks {
  int32_t block, page;  // lane i: of entry i
  int per_entry;
  int count;  // of the split

  __device__ int32_t page_of(int chunk) const { return __shfl_sync(kAll, page, chunk / per_entry); }
  __device__ int within_block(int chunk) const { return chunk % per_entry * kChunkKeys; }
  __device__ int32_t position(int chunk) const {
    return __shfl_sync(kAll, block, chunk / per_entry) * per_entry * kChunkKeys + within_block(chunk);
  }
};

// Copies kChunkKeys rows of keys or of values, `token_stride` apart, by all threads of the CTA.
template <int kHeadDim, int kWarps>
__device__ __forceinline__ void load_rows(std::byte* to, const std::byte* from, int token_stride, bool valid) {
  constexpr int kPitch = Layout<kHeadDim, kWarps>::kPitch;
  constexpr int kThreads = 32 * kWarps, kPieces = kHeadDim / 8;  // of 16 bytes, a row
  const int thread = static_cast<int>(threadIdx.x & (kThreads - 1));
  if constexpr (kThreads % kPieces == 0 && kChunkKeys * kPieces % kThreads == 0) {
    constexpr int kRows = kThreads / kPieces;  // at a time
    const int row = thread / kPieces, piece = thread % kPieces;
    to += row * kPitch + piece * 16;
    from += row * token_stride + piece * 16;
#pragma unroll
    for (int i = 0; i < kChunkKeys / kRows; ++i) {
      cp_async_16(to + i * kRows * kPitch, from, valid);
      from += kRows * token_stride;
    }
  } else {
#pragma unroll 1
    for (int at = thread; at < kChunkKeys * kPieces; at += kThreads) {
      const int row = at / kPieces, piece = at % kPieces;
      cp_async_16(to + row * kPitch + piece * 16, from + row * token_stride + piece * 16, valid);
    }
  }
}

// Starts the copies of tile `tile`, if there is one, and closes their group.
template <int kHeadDim, int kWarps>
__device__ __forceinline__ void load_tile(const AttentionParams& p, const Chunks& chunks, const std::byte* slots,
                                          int tile, std::byte* stage) {
  constexpr int kChunkBytes = kChunkKeys * Layout<kHeadDim, kWarps>::kPitch;
  if (tile * 2 < chunks.count) {
    const int token_stride = static_cast<int>(p.pool.token_stride);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      // Past the end zeros are written, and nothing is read.
      const int chunk = min(2 * tile + c, chunks.count - 1);
      const bool valid = 2 * tile + c < chunks.count;
      const std::byte* keys =
          slots + chunks.page_of(chunk) * p.pool.page_stride + chunks.within_block(chunk) * token_stride;
      load_rows<kHeadDim, kWarps>(stage + c * kChunkBytes, keys, token_stride, valid);
      load_rows<kHeadDim, kWarps>(stage + (2 + c) * kChunkBytes, keys + p.pool.v_offset, token_stride, valid);
    }
  }
  cp_async_commit();
}

// A warp's 16 queries and what it has summed up for them. Lane l looks after queries l / 4 ([0]) and l / 4 + 8 ([1]).
template <int kHeadDim>
struct Tile {
  int first_query;      // of the group
  int row[2];           // of the group
  int32_t position[2];  // INT_MAX for a query that does not exist or whose row is masked: its sums are not used
  int32_t lowest;       // of the tile's positions
  float max[2] = {-INFINITY, -INFINITY};  // of q . k
  float sum[2] = {0, 0};                  // this lane's part
  float acc[kHeadDim / 8][4];             // columns 8 j + 2 (l % 4) and the next: of [0], then of [1]
};

// Rounds the tile's queries to bf16 into shared memory.
template <int kHeadDim>
__device__ __forceinline__ void stage_queries(const AttentionParams& p, int64_t first_row, int head, int first_query,
                                              int queries, std::byte* to) {
  constexpr int kPitch = Layout<kHeadDim, 1>::kPitch;
  const int lane = threadIdx.x % 32, q_per_kv = static_cast<int>(p.q_per_kv);
#pragma unroll 4
  for (int m = 0; m < kTileQueries; ++m) {
    const int query = first_query + m;
    const float* q = p.q + (first_row + query / q_per_kv) * p.q_stride +
                     (static_cast<int64_t>(head) * q_per_kv + query % q_per_kv) * kHeadDim;
    for (int j = 2 * lane; j < kHeadDim; j += 64) {
      const uint32_t pair = query < queries ? pack_bf16(q[j], q[j + 1]) : 0;
      *reinterpret_cast<uint32_t*>(to + m * kPitch + 2 * j) = pair;
    }
  }
  __syncwarp();
}

// acc += weights [16, 16] * the chunk's values, where some rows do not see all of the chunk. Values that a row does not
// see may be NaN, so each row's sum is taken with the values behind it cleared.
template <int kHeadDim>
__device__ __forceinline__ void add_partly_seen(Tile<kHeadDim>& t, const int32_t* positions, int last_row,
                                                int32_t chunk_position, const uint32_t (&weights)[4],
                                                const std::byte* values) {
  const int pair = threadIdx.x % 4 * 2;
  for (int r = __shfl_sync(kAll, t.row[0], 0); r <= last_row; ++r) {
    const int32_t position = positions[r];
    if (position < chunk_position) continue;  // masked rows too
    const int seen = position - chunk_position + 1;
    const uint32_t mask0 = (pair < seen ? 0xffffu : 0) | (pair + 1 < seen ? 0xffff0000u : 0);
    const uint32_t mask1 = (pair + 8 < seen ? 0xffffu : 0) | (pair + 9 < seen ? 0xffff0000u : 0);
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      uint32_t v[4];
      ldmatrix_4_transposed(v, values + j * 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float(&acc)[4] = t.acc[2 * j + half];
        float with[4] = {acc[0], acc[1], acc[2], acc[3]};
        mma_bf16(with, weights, v[2 * half] & mask0, v[2 * half + 1] & mask1);
        if (t.row[0] == r) acc[0] = with[0], acc[1] = with[1];
        if (t.row[1] == r) acc[2] = with[2], acc[3] = with[3];
      }
    }
  }
}

// Adds one tile of keys. `stage` holds it; `queries` is the warp's tile of queries in shared memory, which
// `in_registers` holds too where they fit.
template <int kHeadDim>
__device__ __forceinline__ void attend_tile(Tile<kHeadDim>& t, const Chunks& chunks, int tile, std::byte* stage,
                                            const std::byte* queries, const uint32_t (&in_registers)[kHeadDim / 16][4],
                                            float scale, const int32_t* positions, int last_row) {
  using L = Layout<kHeadDim, 1>;
  const int lane = threadIdx.x % 32, matrix = lane / 8, matrix_row = lane % 8;
  float s[4][4] = {};  // q . k: keys 8 j + 2 (l % 4) and the next
  const std::byte* keys = stage + (matrix / 2 * 8 + matrix_row) * L::kPitch + matrix % 2 * 16;
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    uint32_t a[4] = {in_registers[k][0], in_registers[k][1], in_registers[k][2], in_registers[k][3]};
    if constexpr (!L::kQueriesInRegisters) ldmatrix_4(a, queries + k * 32);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      uint32_t b[4];
      ldmatrix_4(b, keys + c * kChunkKeys * L::kPitch + k * 32);
      mma_bf16(s[2 * c], a, b[0], b[1]);
      mma_bf16(s[2 * c + 1], a, b[2], b[3]);
    }
  }

  // Keys that a row does not see: their logits are replaced, their memory may hold anything.
  int32_t chunk_position[2];
  bool there[2], all_seen[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int chunk = 2 * tile + c;
    there[c] = chunk < chunks.count;
    chunk_position[c] = chunks.position(min(chunk, chunks.count - 1));
    all_seen[c] = there[c] && chunk_position[c] <= t.lowest - (kChunkKeys - 1);
    if (all_seen[c]) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int32_t key = chunk_position[c] + j / 2 * 8 + lane % 4 * 2 + j % 2;
      if (!there[c] || key > t.position[0]) s[2 * c + j / 2][j % 2] = -INFINITY;
      if (!there[c] || key > t.position[1]) s[2 * c + j / 2][2 + j % 2] = -INFINITY;
    }
  }

  float correction[2];
  uint32_t weights[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; ++j) most = fmaxf(most, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 2));
    // Rounded products, not fused with what follows: the same in every instantiation.
    const float before = __fmul_rn(t.max[half], scale);
    t.max[half] = fmaxf(t.max[half], most);
    const float base = t.max[half] == -INFINITY ? 0.0f : __fmul_rn(t.max[half], scale);
    correction[half] = exp2_approx(before - base);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t w = pack_bf16(exp2_approx(fmaf(s[j][2 * half], scale, -base)),
                                   exp2_approx(fmaf(s[j][2 * half + 1], scale, -base)));
      sum += low_bf16(w) + high_bf16(w);  // as they will weigh the values
      weights[j / 2][j % 2 * 2 + half] = w;
    }
    t.sum[half] = fmaf(t.sum[half], correction[half], sum);
  }
  if (__any_sync(kAll, correction[0] != 1 || correction[1] != 1)) {
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
      t.acc[j][0] *= correction[0], t.acc[j][1] *= correction[0];
      t.acc[j][2] *= correction[1], t.acc[j][3] *= correction[1];
    }
  }

#pragma unroll
  for (int c = 0; c < 2; ++c) {
    if (!there[c]) break;
    const std::byte* values =
        stage + (kTileKeys + c * kChunkKeys + matrix % 2 * 8 + matrix_row) * L::kPitch + matrix / 2 * 16;
    if (!all_seen[c]) {
      add_partly_seen(t, positions, last_row, chunk_position[c], weights[c], values);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      uint32_t v[4];
      ldmatrix_4_transposed(v, values + j * 32);
      mma_bf16(t.acc[2 * j], weights[c], v[0], v[1]);
      mma_bf16(t.acc[2 * j + 1], weights[c], v[2], v[3]);
    }
  }
}

// Grid: [groups * kv_heads, splits, tile groups].
template <int kHeadDim, int kWarps>
__global__ void __launch_bounds__(32 * kWarps) attend_splits(const AttentionCudaArgs a, int tile_groups) {
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

  std::byte* own = shared + L::kStages * L::kStageBytes + warp * L::kQueryBytes;
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
__global__ void __launch_bounds__(32 * kMergeWarps) merge_splits(const AttentionCudaArgs a, int64_t all_queries) {
  const AttentionParams& p = a.p;
  const int lane = threadIdx.x % 32, q_per_kv = static_cast<int>(p.q_per_kv), d = static_cast<int>(p.head_dim);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMergeWarps + threadIdx.x / 32;
  if (at >= all_queries) return;
  const int64_t list = at / a.max_queries, group = list / p.kv_heads;
  const int query = static_cast<int>(at % a.max_queries);
  const int64_t row = p.row_begin[group] + query / q_per_kv;
  if (row >= p.row_begin[group + 1]) return;
  float* out = p.out + row * p.out_stride + (list % p.kv_heads * q_per_kv + query % q_per_kv) * d;
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
    out[j] = acc.x * inverse;
    out[j + 1] = acc.y * inverse;
    out[j + 2] = acc.z * inverse;
    out[j + 3] = acc.w * inverse;
  }
}

template <int kHeadDim, int kWarps>
void launch_splits(const AttentionCudaArgs& a, int tiles, cudaStream_t stream) {
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
void launch_splits(const AttentionCudaArgs& a, cudaStream_t stream) {
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
  AttentionCudaArgs a{.p = params};
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
  merge_splits<<<static_cast<unsigned>(ctas), 32 * kMergeWarps, 0, s.handle()>>>(a, all_queries);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
