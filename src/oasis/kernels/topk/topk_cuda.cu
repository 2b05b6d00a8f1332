// The best blocks of a (item, head), one CTA each. An entry is a score's rank key above its block number, so that rank
// order is the order of numbers and no two are equal.
//
// Up to kFewCandidates stay in registers: they are counted in buckets of equal width between the largest and the
// smallest score; an entry's rank is the number of entries in better buckets and of better ones in its own. Where there
// are more, or the scores are not spread so that this is quick: a radix selection, eleven bits at a time from the
// highest in which entries differ, finds a bound under which the best k and few others lie; those are sorted.
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
constexpr int kFewCandidates = 2048, kFewThreads = 128, kFewBuckets = 1024;
constexpr uint32_t kAll = 0xffffffffu;

// As on the CPU: the larger score has the smaller key, both zeros the same one, NaN the largest.
__device__ __forceinline__ uint32_t rank_key(float score) {
  const uint32_t u = __float_as_uint(score + 0.0f);  // -0 + 0 = +0
  const uint32_t ascending = u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
  return score == score ? ~ascending : ~0u;
}

// A score of that key; of both zeros the positive one.
__device__ __forceinline__ float score_of(uint32_t key) {
  const uint32_t ascending = ~key;
  return __uint_as_float(ascending ^ (ascending & 0x80000000u ? 0x80000000u : ~0u));
}

struct Shared {
  __align__(16) uint32_t count[kBuckets];
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

// One row's result.
struct Ranked {
  const float* scores;
  int32_t* blocks;
  float* block_scores;  // or null
  int pinned;           // ranks that are taken

  __device__ void write(int rank, int block) const {
    blocks[pinned + rank] = block;
    if (block_scores) block_scores[pinned + rank] = scores[block];
  }
};

// Any number of candidates. `most` entries fit `kept`, a power of two; s.kept is 0 and a barrier lies behind it.
__device__ void rank_by_radix(const Candidates& c, int k, int most, Shared& s, Entry* kept, const Ranked& out) {
  int shift = 64;
  Entry prefix = 0;
  if (c.n - c.first > most) select_bound(c, k, most, s, shift, prefix);
  __syncthreads();
  for (int block = c.first + threadIdx.x; block < c.n; block += blockDim.x) {
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
  for (int i = threadIdx.x; i < k; i += blockDim.x) out.write(i, static_cast<int>(kept[i] & 0xffffffffu));
}

// Buckets of equal width, the best scores in the first; a better score is never in a later one, NaN is in the last.
struct Buckets {
  float best, scale;

  __device__ bool usable() const { return scale > 0 && scale < INFINITY; }
  __device__ int of(float score) const {
    const float at = __fmul_rn(__fsub_rn(best, score), scale);
    return at < kFewBuckets - 1 ? static_cast<int>(at) : kFewBuckets - 1;
  }
};

// At most kPerThread * kFewThreads candidates, by kFewThreads threads. False, with nothing written: not quick here.
template <int kPerThread>
__device__ bool rank_by_buckets(const Candidates& c, int k, int most, Shared& s, Entry* kept, const Ranked& out) {
  constexpr int kWarps = kFewThreads / 32, kOwn = kFewBuckets / kFewThreads;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  float score[kPerThread];
  uint32_t best = ~0u, worst = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int block = c.first + i * kFewThreads + thread;
    score[i] = block < c.n ? c.scores[block] : NAN;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const uint32_t key = rank_key(score[i]);
    best = min(best, key);
    if (key != ~0u) worst = max(worst, key);
  }
  best = __reduce_min_sync(kAll, best), worst = __reduce_max_sync(kAll, worst);
  __shared__ uint32_t warp_best[kWarps], warp_worst[kWarps];
  if (lane == 0) warp_best[warp] = best, warp_worst[warp] = worst;
  uint32_t* own = s.count + thread * kOwn;
#pragma unroll
  for (int i = 0; i < kOwn; i += 4) *reinterpret_cast<uint4*>(own + i) = make_uint4(0, 0, 0, 0);
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) best = min(best, warp_best[w]), worst = max(worst, warp_worst[w]);
  if (best >= worst) return false;  // one score, or none
  const float largest = score_of(best), width = __fsub_rn(largest, score_of(worst));
  const Buckets buckets{largest, (kFewBuckets - 1) / width};
  if (!buckets.usable()) return false;

#pragma unroll
  for (int i = 0; i < kPerThread; ++i)
    if (c.first + i * kFewThreads + thread < c.n) atomicAdd(&s.count[buckets.of(score[i])], 1u);
  __syncthreads();
  uint32_t count[kOwn], sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; i += 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(own + i);
    count[i] = v.x, count[i + 1] = v.y, count[i + 2] = v.z, count[i + 3] = v.w;
    sum += v.x + v.y + v.z + v.w;
  }
  uint32_t upto = sum;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t lower = __shfl_up_sync(kAll, upto, step);
    if (lane >= step) upto += lower;
  }
  if (lane == 31) s.warp_sum[warp] = upto;
  __syncthreads();
  uint32_t before = upto - sum;
  for (int w = 0; w < warp; ++w) before += s.warp_sum[w];
  // From here on s.count holds where a bucket's next entry goes: once all are placed, where it ends.
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    own[i] = before;
    if (before < static_cast<uint32_t>(k) && static_cast<uint32_t>(k) <= before + count[i]) {
      s.bucket = thread * kOwn + i;
      s.below = before + count[i];
    }
    before += count[i];
  }
  __syncthreads();
  const int last = static_cast<int>(s.bucket), listed = static_cast<int>(s.below);
  if (listed > most) return false;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int block = c.first + i * kFewThreads + thread;
    if (block >= c.n) continue;
    const int bucket = buckets.of(score[i]);
    if (bucket > last) continue;
    kept[atomicAdd(&s.count[bucket], 1u)] = static_cast<Entry>(rank_key(score[i])) << 32 | static_cast<uint32_t>(block);
  }
  __syncthreads();
  for (int i = thread; i < listed; i += kFewThreads) {
    const Entry e = kept[i];
    const auto key = static_cast<uint32_t>(e >> 32);
    const int bucket = key == ~0u ? kFewBuckets - 1 : buckets.of(score_of(key));
    const int begin = bucket == 0 ? 0 : static_cast<int>(s.count[bucket - 1]), end = static_cast<int>(s.count[bucket]);
    int rank = begin;
    for (int other = begin; other < end; ++other) rank += kept[other] < e ? 1 : 0;
    if (rank < k) out.write(rank, static_cast<int>(e & 0xffffffffu));
  }
  return true;
}

// Grid: [items * heads]. `most` entries fit `kept`, a power of two. kPerThread: candidates a thread at most; 0: any.
template <int kPerThread>
__global__ void __launch_bounds__(kPerThread > 0 ? kFewThreads : 1024) top_k(const TopKParams p, int most) {
  extern __shared__ __align__(16) Entry kept[];
  __shared__ Shared s;
  const unsigned row = blockIdx.x;
  const float* scores = p.scores + row * p.score_stride;
  const int n = p.candidates[row / static_cast<unsigned>(p.heads)];
  const int k = static_cast<int>(min(p.k, static_cast<int64_t>(n)));
  const int pinned = p.pin_first && k > 0 ? 1 : 0;
  const Ranked out{scores, p.blocks + row * p.block_stride,
                   p.block_scores ? p.block_scores + row * p.block_stride : nullptr, pinned};
  if (threadIdx.x == 0) {
    p.count[row] = max(k, 0);
    if (pinned) {
      out.blocks[0] = 0;
      if (out.block_scores) out.block_scores[0] = scores[0];
    }
    s.kept = 0;
  }
  if (k <= pinned) return;
  const Candidates c{scores, pinned, n};
  if constexpr (kPerThread > 0) {
    if (rank_by_buckets<kPerThread>(c, k - pinned, most, s, kept, out)) return;
  }
  __syncthreads();
  rank_by_radix(c, k - pinned, most, s, kept, out);
}

template <int kPerThread>
void launch(const TopKParams& p, int64_t rows, int most, int threads, cudaStream_t stream) {
  const int bytes = most * static_cast<int>(sizeof(Entry));
  OASIS_CUDA_CHECK(cudaFuncSetAttribute(top_k<kPerThread>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  top_k<kPerThread><<<static_cast<unsigned>(rows), threads, bytes, stream>>>(p, most);
  OASIS_CUDA_CHECK(cudaGetLastError());
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
  if (p.score_stride <= kFewCandidates / 2) {
    launch<kFewCandidates / 2 / kFewThreads>(p, rows, most, kFewThreads, s.handle());
  } else if (p.score_stride <= kFewCandidates) {
    launch<kFewCandidates / kFewThreads>(p, rows, most, kFewThreads, s.handle());
  } else {
    launch<0>(p, rows, most, p.score_stride > kManyCandidates ? 1024 : 256, s.handle());
  }
}

}  // namespace oasis::kernels
