#include <algorithm>
#include <bit>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/kernels/topk/topk.h"

namespace oasis::kernels {
namespace {

constexpr uint32_t kBuckets = 256;
constexpr int64_t kSmall = 24;               // below, comparing beats counting
constexpr int64_t kInlineCandidates = 4096;  // in all: below, waking other threads costs more than it saves

// A block and its rank key, key << 32 | block: rank order is the order of these numbers.
using Entry = uint64_t;

struct Scratch {
  std::vector<Entry> entries;  // [n]
  std::vector<Entry> other;    // [n]
};

// The larger score has the smaller key, both zeros the same one, NaN the largest.
inline uint32_t rank_key(float score) {
  const uint32_t u = std::bit_cast<uint32_t>(score + 0.0f);  // -0 + 0 = +0
  const uint32_t ascending = u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
  return score == score ? ~ascending : ~0u;
}

void insertion_sort(Entry* entries, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const Entry e = entries[i];
    int64_t j = i;
    for (; j > 0 && entries[j - 1] > e; --j) entries[j] = entries[j - 1];
    entries[j] = e;
  }
}

// The bits in which the keys of n entries differ.
uint32_t differing_bits(const Entry* entries, int64_t n) {
  Entry all = ~Entry{0}, any = 0;
  for (int64_t i = 0; i < n; ++i) {
    all &= entries[i];
    any |= entries[i];
  }
  return static_cast<uint32_t>((all ^ any) >> 32);
}

// Leaves the k smallest of n entries (1 <= k <= n) in front, sorted; what is behind them is undefined. Entries with
// equal keys come in ascending block order. A bucket sort by the eight bits of the key that tell most, which drops the
// buckets that cannot matter and repeats itself in those that are still large.
void rank(Entry* entries, int64_t n, int64_t k, Entry* other) {
  if (n <= kSmall) return insertion_sort(entries, n);
  const uint32_t differing = differing_bits(entries, n);
  if (differing == 0) return;
  const int shift = 32 + std::max(0, static_cast<int>(std::bit_width(differing)) - 8);
  const auto bucket_of = [shift](Entry e) { return static_cast<uint32_t>(e >> shift) & (kBuckets - 1); };

  int32_t count[kBuckets] = {}, next[kBuckets];
  for (int64_t i = 0; i < n; ++i) ++count[bucket_of(entries[i])];
  uint32_t last = 0;  // the bucket of the k-th
  int32_t kept = 0;
  for (;; ++last) {
    next[last] = kept;
    kept += count[last];
    if (kept >= k) break;
  }
  for (int64_t i = 0, to = 0; i < n; ++i) {
    other[to] = entries[i];
    to += bucket_of(entries[i]) <= last;
  }
  for (int32_t i = 0; i < kept; ++i) entries[next[bucket_of(other[i])]++] = other[i];
  for (uint32_t b = 0; b <= last; ++b) {
    if (count[b] < 2) continue;
    const int64_t begin = next[b] - count[b];
    rank(entries + begin, count[b], std::min<int64_t>(k - begin, count[b]), other);
  }
}

void top_k(const TopKParams& p, int64_t item, int64_t head) {
  thread_local Scratch scratch;
  const int64_t n = p.candidates[item], k = std::min(p.k, n), row = item * p.heads + head;
  const float* scores = p.scores + row * p.score_stride;
  int32_t* blocks = p.blocks + row * p.block_stride;
  const int64_t pinned = p.pin_first && k > 0;
  if (pinned) blocks[0] = 0;
  scratch.entries.resize(static_cast<size_t>(n));
  scratch.other.resize(static_cast<size_t>(n));
  Entry* entries = scratch.entries.data();
  for (int64_t b = pinned; b < n; ++b) entries[b - pinned] = Entry{rank_key(scores[b])} << 32 | static_cast<Entry>(b);
  if (k > pinned) rank(entries, n - pinned, k - pinned, scratch.other.data());
  for (int64_t i = pinned; i < k; ++i) blocks[i] = static_cast<int32_t>(entries[i - pinned]);
  if (p.block_scores) {
    float* out = p.block_scores + row * p.block_stride;
    for (int64_t i = 0; i < k; ++i) out[i] = scores[blocks[i]];
  }
  p.count[row] = static_cast<int32_t>(k);
}

}  // namespace

void topk_cpu(Stream& stream, const TopKParams& p) {
  int64_t candidates = 0;
  for (int64_t i = 0; i < p.items; ++i) {
    OASIS_CHECK(std::min<int64_t>(p.k, p.candidates[i]) <= p.block_stride, "k is {}, block_stride {}", p.k,
                p.block_stride);
    candidates += p.candidates[i] * p.heads;
  }
  const auto body = [&](int64_t row, int) { top_k(p, row / p.heads, row % p.heads); };
  if (candidates > kInlineCandidates) {
    stream.pool().run(p.items * p.heads, body);
  } else {
    for (int64_t row = 0; row < p.items * p.heads; ++row) body(row, 0);
  }
}

}  // namespace oasis::kernels
