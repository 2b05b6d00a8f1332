// Internal: what one warp of attention does on the GPU with a tile of 16 queries and 32 keys at a time, and how keys
// and values come into shared memory.
#pragma once

#include <climits>

#include "oasis/kernels/attention/attention.h"
#include "oasis/kernels/cuda/mma.cuh"

namespace oasis::kernels::attention_tile {

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
  // Few enough stages that four CTAs of up to 128 dimensions fit a multiprocessor: a warp for each of its schedulers.
  static constexpr int kStages = kHeadDim <= 64 ? 5 : kHeadDim <= 96 ? 4 : kHeadDim <= 128 ? 3 : 2;
  static constexpr int kQueryBytes = kTileQueries * kPitch;  // a warp
  static constexpr bool kQueriesInRegisters = kHeadDim <= 128;
  // Queries on their way into registers lie in the last stage, which is filled after the first barrier.
  static constexpr int kQueriesAt = (kQueriesInRegisters ? kStages - 1 : kStages) * kStageBytes;
  static constexpr int kBytes = kStages * kStageBytes + (kQueriesInRegisters ? 0 : kWarps * kQueryBytes);
  static_assert(!kQueriesInRegisters || kWarps * kQueryBytes <= kStageBytes);
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

}  // namespace oasis::kernels::attention_tile
