// The best blocks of a (item, head), one CTA each. An entry is a score's rank key above its block number, so that rank
// order is the order of numbers and no two are equal. A radix selection, eleven bits at a time from the highest in
// which entries differ, finds a bound under which the best k and few others lie; those are sorted.
#include <algorithm>
#include <bit>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/sort.cuh"
#include "oasis/kernels/topk/topk.h"

namespace oasis::kernels {
namespace {

using namespace oasis::cuda;

using Entry = unsigned long long;

constexpr int kDigitBits = 11, kBuckets = 1 << kDigitBits;
constexpr int kSmall = 256;                // few enough to sort without a selection
constexpr int64_t kMostKept = 16384;       // entries that shared memory holds
constexpr int64_t kManyCandidates = 8192;  // from here on a CTA has more threads
constexpr uint32_t kAll = 0xffffffffu;

// As on the CPU: the larger score has the smaller key, both zeros the same one, NaN the largest.
__device__ __forceinline__ uint32_t rank_key(float score) {
  const uint32_t u = __float_as_uint(score + 0.0f);  // -0 + 0 = +0
  const uint32_t ascending = u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
  return score == score ? ~ascending : ~0u;
}

struct Shared {
  uint32_t count[kBuckets];
  uint32_t warp_sum[32];
  uint32_t and_bits[2], or_bits[2];
  uint32_t bucket, below, kept;  // found by one thread for all
};

// The scores of one (item, head) as entries.
struct Candidates {
  const float* scores;
  int first, n;  // blocks first .. n - 1

  __device__ Entry entry(int block) const {
    return static_cast<Entry>(rank_key(scores[block])) << 32 | static_cast<uint32_t>(block);
  }
};

// The bits in which the entries of the set (entry >> shift == prefix) differ, and those that all of them have.
__device__ void differing_bits(const Candidates& c, int shift, Entry prefix, Shared& s, Entry& differing, Entry& all) {
  if (threadIdx.x < 2) s.and_bits[threadIdx.x] = ~0u, s.or_bits[threadIdx.x] = 0;
  __syncthreads();
  uint32_t and_low = ~0u, and_high = ~0u, or_low = 0, or_high = 0;
  for (int block = c.first + threadIdx.x; block < c.n; block += blockDim.x) {
    const Entry e = c.entry(block);
    if (shift < 64 && e >> shift != prefix) continue;
    and_low &= static_cast<uint32_t>(e), and_high &= static_cast<uint32_t>(e >> 32);
    or_low |= static_cast<uint32_t>(e), or_high |= static_cast<uint32_t>(e >> 32);
  }
  and_low = __reduce_and_sync(kAll, and_low), and_high = __reduce_and_sync(kAll, and_high);
  or_low = __reduce_or_sync(kAll, or_low), or_high = __reduce_or_sync(kAll, or_high);
  if (threadIdx.x % 32 == 0) {
    atomicAnd(&s.and_bits[0], and_low), atomicAnd(&s.and_bits[1], and_high);
    atomicOr(&s.or_bits[0], or_low), atomicOr(&s.or_bits[1], or_high);
  }
  __syncthreads();
  all = static_cast<Entry>(s.and_bits[1]) << 32 | s.and_bits[0];
  differing = all ^ (static_cast<Entry>(s.or_bits[1]) << 32 | s.or_bits[0]);
}

// Finds the bucket that holds the `need`-th entry (from 1) of s.count: s.bucket; s.below entries lie in lower ones.
__device__ void find_bucket(uint32_t need, Shared& s) {
  const int per_thread = kBuckets / blockDim.x, begin = threadIdx.x * per_thread;
  uint32_t own = 0;
  for (int i = 0; i < per_thread; ++i) own += s.count[begin + i];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  uint32_t upto = own;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t lower = __shfl_up_sync(kAll, upto, step);
    if (lane >= step) upto += lower;
  }
  if (lane == 31) s.warp_sum[warp] = upto;
  __syncthreads();
  uint32_t before = lane < warp && lane < warps ? s.warp_sum[lane] : 0;
  before = __reduce_add_sync(kAll, before) + upto - own;
  if (before < need && need <= before + own) {
    int bucket = begin;
    while (before + s.count[bucket] < need) before += s.count[bucket++];
    s.bucket = bucket;
    s.below = before;
  }
  __syncthreads();
}

// A bound on entries, entry >> shift <= prefix, under which the best k lie and at most `most` in all (most >= k >= 1).
__device__ void select_bound(const Candidates& c, uint32_t k, uint32_t most, Shared& s, int& shift, Entry& prefix) {
  uint32_t below = 0;  // entries known to be better than all of the set
  shift = 64;
  prefix = 0;
  while (true) {
    Entry differing, all;
    differing_bits(c, shift, prefix, s, differing, all);
    const int next = max(0, 63 - __clzll(static_cast<long long>(differing)) - (kDigitBits - 1));
    for (int i = threadIdx.x; i < kBuckets; i += blockDim.x) s.count[i] = 0;
    __syncthreads();
    for (int block = c.first + threadIdx.x; block < c.n; block += blockDim.x) {
      const Entry e = c.entry(block);
      if (shift == 64 || e >> shift == prefix) atomicAdd(&s.count[(e >> next) & (kBuckets - 1)], 1u);
    }
    __syncthreads();
    find_bucket(k - below, s);
    const uint32_t bucket = s.bucket, in_bucket = s.count[bucket];
    below += s.below;
    prefix = (all >> next & ~static_cast<Entry>(kBuckets - 1)) | bucket;
    shift = next;
    if (below + in_bucket <= most || shift == 0) return;
    __syncthreads();  // before the counts are cleared
  }
}

// Grid: [items * heads]. `most` entries fit `kept`, a power of two.
__global__ void top_k(const TopKParams p, int most) {
  extern __shared__ __align__(16) Entry kept[];
  __shared__ Shared s;
  const int64_t row = blockIdx.x;
  const int n = p.candidates[row / p.heads];
  const int k = static_cast<int>(min(p.k, static_cast<int64_t>(n)));
  const float* scores = p.scores + row * p.score_stride;
  int32_t* blocks = p.blocks + row * p.block_stride;
  float* block_scores = p.block_scores ? p.block_scores + row * p.block_stride : nullptr;
  const int pinned = p.pin_first && k > 0 ? 1 : 0;
  if (threadIdx.x == 0) {
    p.count[row] = max(k, 0);
    if (pinned) {
      blocks[0] = 0;
      if (block_scores) block_scores[0] = scores[0];
    }
    s.kept = 0;
  }
  if (k <= pinned) return;

  const Candidates c{scores, pinned, n};
  int shift = 64;
  Entry prefix = 0;
  if (n - pinned > most) select_bound(c, k - pinned, most, s, shift, prefix);
  __syncthreads();
  for (int block = pinned + threadIdx.x; block < n; block += blockDim.x) {
    const Entry e = c.entry(block);
    if (shift == 64 || e >> shift <= prefix) kept[atomicAdd(&s.kept, 1u)] = e;
  }
  __syncthreads();
  const int count = s.kept;
  int size = 64;
  while (size < count) size *= 2;
  for (int i = count + threadIdx.x; i < size; i += blockDim.x) kept[i] = ~Entry{0};
  __syncthreads();
  sort_ascending(kept, size);
  for (int i = threadIdx.x; i < k - pinned; i += blockDim.x) {
    const int block = static_cast<int>(kept[i] & 0xffffffffu);
    blocks[pinned + i] = block;
    if (block_scores) block_scores[pinned + i] = scores[block];
  }
}

}  // namespace

void topk_cuda(Stream& stream, const TopKParams& params) {
  const int64_t rows = params.items * params.heads;
  if (rows == 0) return;
  CudaStream& s = as_cuda(stream);
  Staging staging(s);
  TopKParams p = params;
  const int64_t longest = std::min(p.k, p.score_stride);
  OASIS_CHECK(longest <= kMostKept, "k is {}, the limit {}", p.k, kMostKept);
  p.scores = staging.in(p.scores, rows * p.score_stride);
  p.candidates = staging.in(p.candidates, p.items);
  p.blocks = staging.inout(p.blocks, rows * p.block_stride);
  p.block_scores = staging.inout(p.block_scores, rows * p.block_stride);
  p.count = staging.inout(p.count, rows);
  const auto most = static_cast<int>(std::max<uint64_t>(kSmall, std::bit_ceil(static_cast<uint64_t>(longest))));
  const int bytes = most * static_cast<int>(sizeof(Entry)), threads = p.score_stride > kManyCandidates ? 1024 : 256;
  OASIS_CUDA_CHECK(cudaFuncSetAttribute(top_k, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  top_k<<<static_cast<unsigned>(rows), threads, bytes, s.handle()>>>(p, most);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
