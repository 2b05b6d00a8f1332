// The split kernel with AVX-512 BF16. Queries are scaled and rounded to bf16, so logits are those of a bf16 query
// summed in fp32; weights stay fp32. Rows of FP8 become bf16 on their way into registers, exactly.
#include <utility>

#include "oasis/kernels/attention/attention_split.h"
#include "oasis/kernels/vec16.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kTileKeys = 16;  // keys of one vector of logits
constexpr int64_t kQueriesAtOnce = 6;
constexpr int64_t kPrefetchDistance = 3;  // half block-heads (a block's keys or its values)
// Loops over sums are unrolled by pragma: only so do the sums stay in registers.
constexpr float kInfinity = __builtin_inff();

int64_t packed_bytes(int64_t head_dim) { return (head_dim * 2 + 63) / 64 * 64; }
int64_t tile_bytes(int64_t head_dim) { return (head_dim + 31) / 32 * 32 / 2 * 64; }

__mmask32 first_elements(int64_t count) { return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1; }

void pack(const float* q, float scale, int64_t head_dim, std::byte* packed) {
  for (int64_t j = 0; j < head_dim; j += 16) {
    const __m256bh x = _mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(q + j), _mm512_set1_ps(scale)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(packed + 2 * j), (__m256i)x);
  }
}

// Rows of keys or of values, one a token; FP8 rows with their scale bytes.
struct Rows {
  const std::byte* first;
  int64_t stride;
  const std::byte* scales;
};

// Elements j .. j + 31 of row i as bf16, those that `mask` names; the others are zero.
template <KvType kType>
[[gnu::always_inline]] inline __m512i load_row(const Rows& rows, int64_t i, int64_t j, __mmask32 mask) {
  const std::byte* row = rows.first + i * rows.stride;
  if constexpr (kType == KvType::kBf16) {
    return _mm512_maskz_loadu_epi16(mask, row + 2 * j);
  } else {
    return fp8_to_bf16(_mm256_maskz_loadu_epi8(mask, row + j), static_cast<uint8_t>(rows.scales[i]));
  }
}

// tile[j] lane i = elements 2 j and 2 j + 1 of key i.
template <KvType kType>
void transpose_keys(const Rows& keys, int64_t head_dim, __m512i* tile) {
  for (int64_t j = 0; j < head_dim; j += 32) {
    const __mmask32 mask = first_elements(head_dim - j);
    __m512i x[16];
    for (int64_t i = 0; i < 16; ++i) x[i] = load_row<kType>(keys, i, j, mask);
    transpose16(x);
    for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(tile + j / 2 + i, x[i]);
  }
}

// The logits of kQueries queries with the keys of a tile. Two sums a query, of even and odd pairs, hide the latency
// when queries are few; they are the same for any number of queries.
template <int kQueries>
void score_tile(const std::byte* packed_q, int64_t q_stride, const __m512i* tile, int64_t pairs, float* scores,
                int64_t scores_stride) {
  __m512 even[kQueries], odd[kQueries];
#pragma GCC unroll 16
  for (int m = 0; m < kQueries; ++m) even[m] = odd[m] = _mm512_setzero_ps();
  for (int64_t j = 0; j < pairs; j += 2) {
    const __m512bh k0 = (__m512bh)_mm512_load_si512(tile + j), k1 = (__m512bh)_mm512_load_si512(tile + j + 1);
#pragma GCC unroll 16
    for (int m = 0; m < kQueries; ++m) {
      const int* q = reinterpret_cast<const int*>(packed_q + m * q_stride) + j;
      even[m] = _mm512_dpbf16_ps(even[m], k0, (__m512bh)_mm512_set1_epi32(q[0]));
      odd[m] = _mm512_dpbf16_ps(odd[m], k1, (__m512bh)_mm512_set1_epi32(q[1]));
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kQueries; ++m) _mm512_store_ps(scores + m * scores_stride, _mm512_add_ps(even[m], odd[m]));
}

// Calls body(integral_constant<int, n>, first) for runs of n <= kQueriesAtOnce queries that cover [begin, end).
template <typename Body>
[[gnu::always_inline]] inline void for_query_runs(int64_t begin, int64_t end, Body body) {
  for (; end - begin >= kQueriesAtOnce; begin += kQueriesAtOnce)
    body(std::integral_constant<int, kQueriesAtOnce>{}, begin);
  switch (end - begin) {
    case 5:
      return body(std::integral_constant<int, 5>{}, begin);
    case 4:
      return body(std::integral_constant<int, 4>{}, begin);
    case 3:
      return body(std::integral_constant<int, 3>{}, begin);
    case 2:
      return body(std::integral_constant<int, 2>{}, begin);
    case 1:
      return body(std::integral_constant<int, 1>{}, begin);
  }
}

const std::byte* slot(const AttentionSplit& s, int64_t entry) {
  return s.slots + s.entries[entry].page * s.page_stride;
}

// A split reads the keys of all its entries, then their values; then comes the next split of the list. Where the
// `step`-th of these reads from the start of this split goes, null past the end of the list.
const std::byte* rows_of_step(const AttentionSplit& s, int64_t step) {
  const int64_t listed = s.entry_count + s.entries_after;
  for (int64_t begin = 0, count = s.entry_count; begin < listed; begin += count, step -= 2 * count) {
    if (begin > 0) {
      const int64_t split = s.entries[begin].block / AttentionParams::kSplitBlocks;
      for (count = 1; count <= step && begin + count < listed; ++count)
        if (s.entries[begin + count].block / AttentionParams::kSplitBlocks != split) break;
    }
    if (step < count) return slot(s, begin + step);
    if (step < 2 * count) return slot(s, begin + step - count) + s.v_offset;
  }
  return nullptr;
}

// Into the second level: slots lie scattered, so the hardware's prefetchers do little, and the first level has too few
// miss buffers to keep memory busy. Must be inlined: GCC takes a function that only prefetches for one without effect
// and drops calls of it.
[[gnu::always_inline]] inline void prefetch_ahead(const AttentionSplit& s, int64_t step) {
  const std::byte* rows = rows_of_step(s, step + kPrefetchDistance);
  if (rows == nullptr) return;
  const int64_t row_bytes = s.type == KvType::kBf16 ? 2 * s.head_dim : s.head_dim;
  for (int64_t i = 0; i < s.block_size; ++i)
    for (int64_t b = 0; b < row_bytes; b += 64) _mm_prefetch(rows + i * s.token_stride + b, _MM_HINT_T1);
}

template <KvType kType>
void score(const AttentionSplit& s) {
  const int64_t n = s.entry_count * s.block_size, q_stride = packed_bytes(s.head_dim);
  auto* tile = reinterpret_cast<__m512i*>(s.tile);
  for (int64_t e = 0; e < s.entry_count; ++e) {
    prefetch_ahead(s, e);
    for (int64_t t = 0; t < s.block_size; t += kTileKeys) {
      transpose_keys<kType>({slot(s, e) + t * s.token_stride, s.token_stride, slot(s, e) + s.scale_offset + t},
                            s.head_dim, tile);
      float* scores = s.scores + e * s.block_size + t;
      for_query_runs(0, s.rows * s.q_per_kv, [&](auto count, int64_t m) {
        score_tile<count()>(s.packed_q + m * q_stride, q_stride, tile, s.head_dim / 2, scores + m * n, n);
      });
    }
  }
}

// Keys of the block that a row at `position` sees.
int64_t visible(int64_t block, int64_t block_size, int64_t position) {
  const int64_t seen = position - block * block_size + 1;
  return seen < 0 ? 0 : seen > block_size ? block_size : seen;
}

// Turns one query's logits into weights; n is a multiple of 16.
void softmax(float* scores, int64_t n, float& max_out, float& sum_out) {
  __m512 m = _mm512_set1_ps(-kInfinity);
  for (int64_t i = 0; i < n; i += 16) m = _mm512_max_ps(m, _mm512_load_ps(scores + i));
  max_out = _mm512_reduce_max_ps(m);
  // Masked keys have logit -infinity: a query without any visible key needs a finite subtrahend.
  const __m512 base = _mm512_set1_ps(max_out == -kInfinity ? 0.0f : max_out);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 w = exp2_16(_mm512_sub_ps(_mm512_load_ps(scores + i), base));
    _mm512_store_ps(scores + i, w);
    sum = _mm512_add_ps(sum, w);
  }
  sum_out = _mm512_reduce_add_ps(sum);
  if (sum_out != sum_out) max_out = sum_out;  // a maximum may have lost a NaN
}

// acc[m] += sum over `count` keys of weights[m][i] * values[i], for 32 * kChunks elements from `at` on (fewer in the
// last chunk, by mask). In acc each 32 elements lie as 16 even ones, then 16 odd ones.
template <KvType kType, int kQueries, int kChunks>
void add_values(const Rows& values, int64_t at, int64_t count, __mmask32 last, const float* weights,
                int64_t weights_stride, float* acc, int64_t acc_stride) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512 sum[kQueries][2 * kChunks];
#pragma GCC unroll 16
  for (int m = 0; m < kQueries; ++m)
#pragma GCC unroll 16
    for (int c = 0; c < 2 * kChunks; ++c) sum[m][c] = _mm512_load_ps(acc + m * acc_stride + 16 * c);
  for (int64_t i = 0; i < count; ++i) {
    __m512 v[2 * kChunks];
#pragma GCC unroll 16
    for (int c = 0; c < kChunks; ++c) {
      const __m512i x = load_row<kType>(values, i, at + 32 * c, c == kChunks - 1 ? last : ~__mmask32{0});
      v[2 * c] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
      v[2 * c + 1] = _mm512_castsi512_ps(_mm512_and_si512(x, upper));
    }
#pragma GCC unroll 16
    for (int m = 0; m < kQueries; ++m) {
      const __m512 w = _mm512_set1_ps(weights[m * weights_stride + i]);
#pragma GCC unroll 16
      for (int c = 0; c < 2 * kChunks; ++c) sum[m][c] = _mm512_fmadd_ps(w, v[c], sum[m][c]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kQueries; ++m)
#pragma GCC unroll 16
    for (int c = 0; c < 2 * kChunks; ++c) _mm512_store_ps(acc + m * acc_stride + 16 * c, sum[m][c]);
}

// The first `count` keys of each of the entries [begin, end), for the queries [first, first + kQueries).
template <KvType kType, int kQueries>
void add_entries(const AttentionSplit& s, int64_t begin, int64_t end, int64_t count, int64_t first) {
  constexpr int kMost = kQueries > 3 ? 2 : 4;  // chunks whose sums fit the registers
  const int64_t n = s.entry_count * s.block_size;
  const float* weights = s.scores + first * n;
  float* acc = s.acc + first * s.acc_stride;
  const auto chunks = [&](auto chunk_count, int64_t j) {
    const __mmask32 last = first_elements(s.head_dim - j - 32 * (chunk_count() - 1));
    for (int64_t e = begin; e < end; ++e) {
      if (first == 0 && j == 0) prefetch_ahead(s, s.entry_count + e);
      add_values<kType, kQueries, chunk_count()>(
          {slot(s, e) + s.v_offset, s.token_stride, slot(s, e) + s.scale_offset + s.block_size}, j, count, last,
          weights + e * s.block_size, n, acc + j, s.acc_stride);
    }
  };
  int64_t j = 0;
  for (; j + 32 * (kMost - 1) < s.head_dim; j += 32 * kMost) chunks(std::integral_constant<int, kMost>{}, j);
  for (; j < s.head_dim; j += 32) chunks(std::integral_constant<int, 1>{}, j);
}

// From even and odd elements apart to the order of memory.
void interleave(float* acc, int64_t head_dim) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  for (int64_t j = 0; j < head_dim; j += 32) {
    const __m512 even = _mm512_load_ps(acc + j), odd = _mm512_load_ps(acc + j + 16);
    _mm512_store_ps(acc + j, _mm512_permutex2var_ps(even, low, odd));
    _mm512_store_ps(acc + j + 16, _mm512_permutex2var_ps(even, high, odd));
  }
}

template <KvType kType>
void attend_type(const AttentionSplit& s) {
  const int64_t queries = s.rows * s.q_per_kv, n = s.entry_count * s.block_size;
  score<kType>(s);

  // A masked token's memory may hold anything, NaN too: its logit is replaced here and its value never read.
  for (int64_t m = 0; m < queries; ++m) {
    float* scores = s.scores + m * n;
    for (int64_t e = s.full_count; e < s.entry_count; ++e) {
      for (int64_t i = visible(s.entries[e].block, s.block_size, s.positions[m / s.q_per_kv]); i < s.block_size; ++i)
        scores[e * s.block_size + i] = -kInfinity;
    }
    softmax(scores, n, s.max[m], s.sum[m]);
    for (int64_t j = 0; j < s.acc_stride; j += 16) _mm512_store_ps(s.acc + m * s.acc_stride + j, _mm512_setzero_ps());
  }

  for_query_runs(0, queries,
                 [&](auto count, int64_t m) { add_entries<kType, count()>(s, 0, s.full_count, s.block_size, m); });
  for (int64_t e = s.full_count; e < s.entry_count; ++e) {
    for (int64_t r = 0; r < s.rows; ++r) {
      const int64_t seen = visible(s.entries[e].block, s.block_size, s.positions[r]);
      for_query_runs(r * s.q_per_kv, (r + 1) * s.q_per_kv,
                     [&](auto count, int64_t m) { add_entries<kType, count()>(s, e, e + 1, seen, m); });
    }
  }
  for (int64_t m = 0; m < queries; ++m) interleave(s.acc + m * s.acc_stride, s.head_dim);
}

void attend(const AttentionSplit& s) {
  s.type == KvType::kBf16 ? attend_type<KvType::kBf16>(s) : attend_type<KvType::kFp8E4M3>(s);
}

void merge(const AttentionMerge& m) {
  float max = -kInfinity, sum = 0;
  for (int64_t s = 0; s < m.splits; ++s) max = m.max[s * m.step] > max ? m.max[s * m.step] : max;
  if (max == -kInfinity) max = 0;
  for (int64_t s = 0; s < m.splits; ++s) {
    float& weight = m.max[s * m.step];
    weight = _mm512_cvtss_f32(exp2_16(_mm512_set1_ps(weight - max)));
    sum += weight * m.sum[s * m.step];
  }
  const __m512 inverse = _mm512_set1_ps(sum == 0 ? 0 : 1 / sum);  // no key seen: zeros
  for (int64_t j = 0; j < m.head_dim; j += 32) {
    const __mmask16 second = m.head_dim - j >= 32 ? 0xffff : 0;
    __m512 a = _mm512_setzero_ps(), b = a;
    for (int64_t s = 0; s < m.splits; ++s) {
      const __m512 weight = _mm512_set1_ps(m.max[s * m.step]);
      const float* acc = m.acc + s * m.step * m.acc_stride + j;
      a = _mm512_fmadd_ps(weight, _mm512_load_ps(acc), a);
      b = _mm512_fmadd_ps(weight, _mm512_load_ps(acc + 16), b);
    }
    _mm512_storeu_ps(m.out + j, _mm512_mul_ps(a, inverse));
    _mm512_mask_storeu_ps(m.out + j + 16, second, _mm512_mul_ps(b, inverse));
  }
}

}  // namespace

const AttentionLevel kAttentionAvx512{packed_bytes, tile_bytes, pack, attend, merge};

}  // namespace oasis::kernels
