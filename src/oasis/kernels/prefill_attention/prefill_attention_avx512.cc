// Prefill attention with AVX-512 BF16: both products multiply bf16 (queries scaled, then rounded; weights rounded) and
// add in fp32. Loops over sums are unrolled by pragma: only so do the sums stay in registers.
#include <utility>

#include "oasis/kernels/prefill_attention/prefill_attention_task.h"
#include "oasis/kernels/vec16.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kKeys = kPrefillKeyTile;
constexpr int64_t kPanelKeys = 64;  // keys of four vectors of logits
constexpr int kMicroRows = 6;       // queries times four vectors: 24 sums in registers
constexpr float kInfinity = __builtin_inff();

int64_t padded(int64_t queries) { return (queries + kMicroRows - 1) / kMicroRows * kMicroRows; }
int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Where the parts of the scratch lie. A pair is two neighbouring bf16 that one lane multiplies and adds.
struct Tiles {
  __m512i* keys;      // [kKeys / 64, head_dim / 2 pairs, 64 keys]
  __m512i* values;    // [head_dim / 16 vectors in runs of 4, kKeys / 2 pairs, vectors of the run]
  float* scores;      // [kMicroRows, kKeys]
  uint32_t* weights;  // [kMicroRows, kKeys / 2 pairs]
  uint32_t* q;        // [queries, q_stride] pairs
  int64_t q_stride;
  float* acc;  // [queries, head_dim]
  float* max;  // [queries]
  float* sum;  // [queries]
};

int64_t lay_out(std::byte* scratch, int64_t queries, int64_t head_dim, Tiles& t) {
  int64_t used = 0;
  const auto take = [&](int64_t bytes) {
    std::byte* p = scratch + used;
    used += align64(bytes);
    return p;
  };
  const int64_t rows = padded(queries);
  t.q_stride = (head_dim + 31) / 32 * 16;
  t.keys = reinterpret_cast<__m512i*>(take(2 * kKeys * t.q_stride * 2));
  t.values = reinterpret_cast<__m512i*>(take(2 * kKeys * head_dim));
  t.scores = reinterpret_cast<float*>(take(4 * kMicroRows * kKeys));
  t.weights = reinterpret_cast<uint32_t*>(take(2 * kMicroRows * kKeys));
  t.q = reinterpret_cast<uint32_t*>(take(4 * rows * t.q_stride));
  t.acc = reinterpret_cast<float*>(take(4 * rows * head_dim));
  t.max = reinterpret_cast<float*>(take(4 * rows));
  t.sum = reinterpret_cast<float*>(take(4 * rows));
  return used;
}

int64_t scratch_bytes(int64_t queries, int64_t head_dim) {
  Tiles t;
  return lay_out(nullptr, queries, head_dim, t);
}

// Tokens from `count` on become zero, their memory is not read.
void fill_keys(const uint16_t* k, int64_t count, int64_t d, const Tiles& t) {
  for (int64_t first = 0; first < kKeys; first += 16) {
    for (int64_t j = 0; j < d; j += 32) {
      const __mmask32 mask = d - j >= 32 ? ~__mmask32{0} : __mmask32{0xffff};
      __m512i x[16];
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i)
        x[i] = _mm512_maskz_loadu_epi16(first + i < count ? mask : 0, k + (first + i) * d + j);
      transpose16(x);
      __m512i* to = t.keys + first / kPanelKeys * 4 * t.q_stride + first % kPanelKeys / 16 + 4 * (j / 2);
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(to + 4 * i, x[i]);
    }
  }
}

void fill_values(const uint16_t* v, int64_t count, int64_t d, const Tiles& t) {
  __m512i* to = t.values;
  for (int64_t j = 0; j < d; j += 64) {
    const int64_t vectors = d - j >= 64 ? 4 : (d - j) / 16;
    for (int64_t i = 0; i < kKeys; i += 2) {
      for (int64_t c = 0; c < vectors; ++c, ++to) {
        const uint16_t* even = v + i * d + j + 16 * c;
        const __mmask16 has_even = i < count ? 0xffff : 0, has_odd = i + 1 < count ? 0xffff : 0;
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(has_even, even));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(has_odd, even + d));
        _mm512_store_si512(to, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
      }
    }
  }
}

// sum[r][c] += left[r][i] (a pair, the same in all lanes) . right[i][c], over `pairs` pairs; right is contiguous.
template <int kVectors>
[[gnu::always_inline]] inline void multiply(const uint32_t* left, int64_t left_stride, const __m512i* right,
                                            int64_t pairs, __m512 (&sum)[kMicroRows][kVectors]) {
  for (int64_t i = 0; i < pairs; ++i) {
    __m512bh x[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) x[c] = (__m512bh)_mm512_load_si512(right + i * kVectors + c);
#pragma GCC unroll 6
    for (int r = 0; r < kMicroRows; ++r) {
      const __m512bh a = (__m512bh)_mm512_set1_epi32(static_cast<int>(left[r * left_stride + i]));
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], x[c], a);
    }
  }
}

// The logits of kMicroRows queries with the panel's keys.
void multiply_keys(const uint32_t* q, const Tiles& t, int64_t panel, int64_t d) {
  __m512 sum[kMicroRows][4];
#pragma GCC unroll 6
  for (int r = 0; r < kMicroRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) sum[r][c] = _mm512_setzero_ps();
  multiply<4>(q, t.q_stride, t.keys + panel * 4 * t.q_stride, d / 2, sum);
#pragma GCC unroll 6
  for (int r = 0; r < kMicroRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) _mm512_store_ps(t.scores + r * kKeys + panel * kPanelKeys + 16 * c, sum[r][c]);
}

template <int kVectors>
void add_value_vectors(const Tiles& t, const __m512i* values, int64_t pairs, int64_t d, float* acc) {
  __m512 sum[kMicroRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kMicroRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) sum[r][c] = _mm512_loadu_ps(acc + r * d + 16 * c);
  multiply<kVectors>(t.weights, kKeys / 2, values, pairs, sum);
#pragma GCC unroll 6
  for (int r = 0; r < kMicroRows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) _mm512_storeu_ps(acc + r * d + 16 * c, sum[r][c]);
}

// acc[r] += weights of kMicroRows queries times the values of the first 2 * pairs keys.
void add_values(const Tiles& t, int64_t pairs, int64_t d, float* acc) {
  int64_t j = 0;
  for (; j + 64 <= d; j += 64) add_value_vectors<4>(t, t.values + j / 16 * (kKeys / 2), pairs, d, acc + j);
  const __m512i* values = t.values + j / 16 * (kKeys / 2);
  if (d - j == 48) add_value_vectors<3>(t, values, pairs, d, acc + j);
  if (d - j == 32) add_value_vectors<2>(t, values, pairs, d, acc + j);
  if (d - j == 16) add_value_vectors<1>(t, values, pairs, d, acc + j);
}

// One query's logits of a tile become weights in bf16; its sums so far are brought to the new maximum. Keys from `seen`
// on are masked.
void softmax_tile(const float* scores, int64_t seen, int64_t d, uint32_t* weights, float& max, float& sum, float* acc) {
  constexpr int kVectors = kKeys / 16;
  __m512 x[kVectors];
#pragma GCC unroll 8
  for (int c = 0; c < kVectors; ++c) {
    const int64_t left = seen - 16 * c;
    const __mmask16 mask = left >= 16 ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1);
    x[c] = _mm512_mask_load_ps(_mm512_set1_ps(-kInfinity), mask, scores + 16 * c);
  }
  const __m512 highest4 = _mm512_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])),
                                        _mm512_max_ps(_mm512_max_ps(x[4], x[5]), _mm512_max_ps(x[6], x[7])));
  const float highest = _mm512_reduce_max_ps(highest4);
  if (highest > max) {
    const __m512 scale = exp2_16(_mm512_set1_ps(max - highest));
    for (int64_t j = 0; j < d; j += 16) _mm512_storeu_ps(acc + j, _mm512_mul_ps(_mm512_loadu_ps(acc + j), scale));
    sum *= _mm512_cvtss_f32(scale);
    max = highest;
  }
  __m512 total = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int c = 0; c < kVectors; ++c) {
    x[c] = exp2_16(_mm512_sub_ps(x[c], _mm512_set1_ps(max)));
    total = _mm512_add_ps(total, x[c]);
  }
#pragma GCC unroll 8
  for (int c = 0; c < kVectors; c += 2)
    _mm512_store_si512(weights + 8 * c, (__m512i)_mm512_cvtne2ps_pbh(x[c + 1], x[c]));
  sum += _mm512_reduce_add_ps(total);
}

void start(const PrefillTask& p, const Tiles& t) {
  const int64_t d = p.head_dim, queries = p.rows * p.q_per_kv;
  const __m512 scale = _mm512_set1_ps(1.44269504f / __builtin_sqrtf(static_cast<float>(d)));  // base-2 logits
  for (int64_t m = 0; m < padded(queries); ++m) {
    const int64_t row = (m < queries ? m : 0) / p.q_per_kv;  // padding computes any query again
    const float* q = p.q + row * p.q_stride + m % p.q_per_kv * d;
    for (int64_t j = 0; j < d; j += 16) {
      const __m256bh x = _mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(q + j), scale));
      _mm256_store_si256(reinterpret_cast<__m256i*>(t.q + m * t.q_stride + j / 2), (__m256i)x);
    }
    for (int64_t j = 0; j < d; j += 16) _mm512_storeu_ps(t.acc + m * d + j, _mm512_setzero_ps());
    t.max[m] = -kInfinity;
    t.sum[m] = 0;
  }
}

void attend(const PrefillTask& p) {
  const int64_t d = p.head_dim, queries = p.rows * p.q_per_kv;
  Tiles t;
  lay_out(p.scratch, queries, d, t);
  start(p, t);
  const int64_t end = p.first_position + p.rows;  // keys that the last row sees
  for (int64_t first = 0; first < end; first += kKeys) {
    const int64_t count = end - first < kKeys ? end - first : kKeys;
    fill_keys(p.k + first * d, count, d, t);
    fill_values(p.v + first * d, count, d, t);
    for (int64_t m = 0; m < queries; m += kMicroRows) {
      const int64_t last = m + kMicroRows < queries ? m + kMicroRows - 1 : queries - 1;
      const int64_t most = p.first_position + last / p.q_per_kv + 1 - first;  // keys seen by the last of these queries
      if (most <= 0) continue;
      const int64_t n = most < kKeys ? most : kKeys;
      for (int64_t panel = 0; panel * kPanelKeys < n; ++panel) multiply_keys(t.q + m * t.q_stride, t, panel, d);
      for (int64_t r = m; r < m + kMicroRows; ++r) {
        const int64_t row = (r < queries ? r : last) / p.q_per_kv;
        softmax_tile(t.scores + (r - m) * kKeys, p.first_position + row + 1 - first, d,
                     t.weights + (r - m) * (kKeys / 2), t.max[r], t.sum[r], t.acc + r * d);
      }
      add_values(t, (n + 1) / 2, d, t.acc + m * d);
    }
  }
  for (int64_t m = 0; m < queries; ++m) {
    float* out = p.out + m / p.q_per_kv * p.out_stride + m % p.q_per_kv * d;
    const __m512 inverse = _mm512_set1_ps(1 / t.sum[m]);
    for (int64_t j = 0; j < d; j += 16)
      _mm512_storeu_ps(out + j, _mm512_mul_ps(_mm512_loadu_ps(t.acc + m * d + j), inverse));
  }
}

}  // namespace

const PrefillLevel kPrefillAvx512{scratch_bytes, attend};

}  // namespace oasis::kernels
