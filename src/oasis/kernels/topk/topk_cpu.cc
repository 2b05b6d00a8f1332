#include <algorithm>
#include <bit>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/kernels/topk/topk.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kRadixBuckets = 256;
constexpr int64_t kSmall = 48;               // below, comparing beats counting
constexpr int64_t kInlineCandidates = 4096;  // in all: below, waking other threads costs more than it saves

struct Scratch {
  std::vector<uint32_t> keys;     // [n]
  std::vector<uint32_t> narrow;   // [n]
  std::vector<uint64_t> entries;  // [n], key << 32 | block
  std::vector<uint64_t> sorted;   // [k]
};

// Unsigned order of keys = rank order: the larger score has the smaller key, both zeros the same one, NaN the largest.
inline uint32_t rank_key(float score) {
  const uint32_t u = std::bit_cast<uint32_t>(score + 0.0f);  // -0 + 0 = +0
  const uint32_t ascending = u ^ (static_cast<uint32_t>(static_cast<int32_t>(u) >> 31) | 0x80000000u);
  return score == score ? ~ascending : ~0u;
}

// The digit of a key that tells most: the eight bits from the highest one in which the keys differ.
struct Digit {
  int shift;
  explicit Digit(uint32_t differing) : shift(std::max(0, static_cast<int>(std::bit_width(differing)) - 8)) {}
  uint32_t of(uint32_t key) const { return key >> shift & (kRadixBuckets - 1); }
};

uint32_t differing_bits(const uint32_t* keys, int64_t n) {
  uint32_t all = ~0u, any = 0;
  for (int64_t i = 0; i < n; ++i) {
    all &= keys[i];
    any |= keys[i];
  }
  return all ^ any;
}

// The k-th smallest of n keys (1 <= k <= n). On return, k is how many keys equal to it are among the k smallest.
uint32_t kth_smallest(const uint32_t* keys, int64_t n, int64_t& k, uint32_t* narrow) {
  for (;;) {
    const uint32_t differing = differing_bits(keys, n);
    if (differing == 0) return keys[0];
    const Digit digit(differing);
    int32_t count[kRadixBuckets] = {};
    for (int64_t i = 0; i < n; ++i) ++count[digit.of(keys[i])];
    uint32_t bucket = 0;
    for (; k > count[bucket]; ++bucket) k -= count[bucket];
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {  // narrow may be keys: kept never passes i
      const uint32_t key = keys[i];
      narrow[kept] = key;
      kept += digit.of(key) == bucket;
    }
    keys = narrow;
    n = kept;
  }
}

// Sorts entries by key, then block. They come in ascending block order, so a stable sort by key is enough.
void sort_entries(uint64_t* entries, int64_t n, uint64_t* other) {
  if (n <= kSmall) {
    std::sort(entries, entries + n);
    return;
  }
  uint64_t all = ~uint64_t{0}, any = 0;
  for (int64_t i = 0; i < n; ++i) {
    all &= entries[i];
    any |= entries[i];
  }
  const int bits = static_cast<int>(std::bit_width(static_cast<uint32_t>((all ^ any) >> 32)));
  uint64_t *from = entries, *to = other;
  for (int shift = 32; shift < 32 + bits; shift += 8) {
    int32_t start[kRadixBuckets + 1] = {};
    for (int64_t i = 0; i < n; ++i) ++start[(from[i] >> shift & 255) + 1];
    for (int64_t b = 0; b < kRadixBuckets; ++b) start[b + 1] += start[b];
    for (int64_t i = 0; i < n; ++i) to[start[from[i] >> shift & 255]++] = from[i];
    std::swap(from, to);
  }
  if (from != entries) std::copy_n(from, n, entries);
}

// Rank order of the best k of blocks first .. first + n - 1 (k <= n), into scratch.entries.
void rank(const float* scores, int64_t first, int64_t n, int64_t k, Scratch& s) {
  s.entries.resize(static_cast<size_t>(std::max(n, int64_t{1})));
  s.sorted.resize(static_cast<size_t>(k));
  s.keys.resize(static_cast<size_t>(n));
  s.narrow.resize(static_cast<size_t>(n));
  if (k <= 0) return;
  uint32_t* keys = s.keys.data();
  for (int64_t i = 0; i < n; ++i) keys[i] = rank_key(scores[first + i]);
  int64_t ties = k;
  const uint32_t last = k < n ? kth_smallest(keys, n, ties, s.narrow.data()) : ~0u;
  if (k == n) ties = n;
  uint64_t* entries = s.entries.data();
  for (int64_t i = 0, kept = 0; kept < k; ++i) {
    const bool tie = keys[i] == last;
    entries[kept] = uint64_t{keys[i]} << 32 | static_cast<uint64_t>(first + i);
    kept += (keys[i] < last) | (tie & (ties > 0));
    ties -= tie;
  }
  sort_entries(entries, k, s.sorted.data());
}

void top_k(const TopKParams& p, int64_t item, int64_t head) {
  thread_local Scratch scratch;
  const int64_t n = p.candidates[item], k = std::min(p.k, n), row = item * p.heads + head;
  const float* scores = p.scores + row * p.score_stride;
  int32_t* blocks = p.blocks + row * p.block_stride;
  const int64_t pinned = p.pin_first && k > 0;
  if (pinned) blocks[0] = 0;
  rank(scores, pinned, n - pinned, k - pinned, scratch);
  for (int64_t i = pinned; i < k; ++i) {
    blocks[i] = static_cast<int32_t>(scratch.entries[static_cast<size_t>(i - pinned)]);
  }
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
