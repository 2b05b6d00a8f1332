#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own AVX-512 header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#include "oasis/kernels/score/score_rows.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kGroup = 4;     // blocks scored side by side, so that their chains of FMAs overlap
constexpr int64_t kPrefetch = 8;  // blocks fetched ahead: pages lie anywhere

__m512i load(const std::byte* p) { return _mm512_loadu_si512(p); }

// The sums of the lanes of four accumulators, each in the same order.
__m128 lane_sums(const __m512 (&acc)[kGroup]) {
  __m128 quarter[kGroup];
  for (int64_t b = 0; b < kGroup; ++b) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(acc[b]), _mm512_extractf32x8_ps(acc[b], 1));
    quarter[b] = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
  return _mm_hadd_ps(_mm_hadd_ps(quarter[0], quarter[1]), _mm_hadd_ps(quarter[2], quarter[3]));
}

// Calls score(rows of four blocks) -> their scores for all blocks; the last group repeats its last block.
void by_group(const ScoreRows& r, int64_t bytes, const auto& score) {
  for (int64_t i = 0; i < r.blocks; i += kGroup) {
    const int64_t last = r.blocks - 1, valid = r.blocks - i < kGroup ? r.blocks - i : kGroup;
    const std::byte* rows[kGroup];
    for (int64_t b = 0; b < kGroup; ++b) {
      rows[b] = r.rows(i + b < last ? i + b : last);
      const int64_t ahead = i + b + kPrefetch;
      if (ahead > last) continue;
      for (int64_t line = 0; line < bytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(r.rows(ahead) + line), _MM_HINT_T0);
      }
    }
    _mm_mask_storeu_ps(r.scores + i, static_cast<__mmask8>((1 << valid) - 1), score(rows));
  }
}

// 16 FP8 E4M3 values as floats, times 2^-8: sign, exponent and mantissa move to their places in a half, whose bias is
// 8 more; subnormals stay exact.
void fp8_to_floats(const std::byte* p, __m512& low, __m512& high) {
  const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i half = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<int16_t>(0xbfff)));
  low = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
  high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
}

}  // namespace

void score_rows_bf16_avx512(const ScoreRows& r) {
  const int64_t n = 2 * r.head_dim;  // a multiple of 32
  // A vector of 32 bf16 splits into its even and its odd elements by one shift and one mask: the weights follow.
  alignas(64) float weights[2 * ScoreRows::kMaxHeadDim];
  for (int64_t i = 0; i < n; i += 32) {
    for (int64_t j = 0; j < 16; ++j) {
      weights[i + j] = r.weights[i + 2 * j];
      weights[i + 16 + j] = r.weights[i + 2 * j + 1];
    }
  }
  const __m512i odd = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
  by_group(r, n * 2, [&](const std::byte* const(&rows)[kGroup]) {
    __m512 acc[kGroup] = {};
    for (int64_t i = 0; i < n; i += 32) {
      const __m512 w_even = _mm512_load_ps(weights + i), w_odd = _mm512_load_ps(weights + i + 16);
      for (int64_t b = 0; b < kGroup; ++b) {
        const __m512i x = load(rows[b] + i * 2);
        acc[b] = _mm512_fmadd_ps(w_even, _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), acc[b]);
        acc[b] = _mm512_fmadd_ps(w_odd, _mm512_castsi512_ps(_mm512_and_si512(x, odd)), acc[b]);
      }
    }
    return lane_sums(acc);
  });
}

namespace {

// weights . row for four rows of d FP8 values, d a multiple of 16, times 2^-8.
__m128 dot_fp8(const float* weights, const std::byte* const (&rows)[kGroup], int64_t offset, int64_t d) {
  __m512 acc[kGroup] = {};
  int64_t i = 0;
  for (; i + 32 <= d; i += 32) {
    const __m512 w0 = _mm512_loadu_ps(weights + i), w1 = _mm512_loadu_ps(weights + i + 16);
    for (int64_t b = 0; b < kGroup; ++b) {
      __m512 x0, x1;
      fp8_to_floats(rows[b] + offset + i, x0, x1);
      acc[b] = _mm512_fmadd_ps(w0, x0, acc[b]);
      acc[b] = _mm512_fmadd_ps(w1, x1, acc[b]);
    }
  }
  if (i < d) {  // 16 left
    const __m512 w0 = _mm512_loadu_ps(weights + i);
    for (int64_t b = 0; b < kGroup; ++b) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[b] + offset + i));
      const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                            _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
      acc[b] = _mm512_fmadd_ps(w0, _mm512_cvtph_ps(half), acc[b]);
    }
  }
  return lane_sums(acc);
}

}  // namespace

void score_rows_fp8_avx512(const ScoreRows& r) {
  const int64_t d = r.head_dim;
  by_group(r, 8 + 2 * d, [&](const std::byte* const(&rows)[kGroup]) {
    alignas(16) float upper[kGroup], lower[kGroup];
    for (int64_t b = 0; b < kGroup; ++b) {
      std::memcpy(&upper[b], rows[b], 4);
      std::memcpy(&lower[b], rows[b] + 4, 4);
    }
    const __m128 bias = _mm_set1_ps(256.0f);
    const __m128 u = _mm_mul_ps(_mm_mul_ps(_mm_load_ps(upper), bias), dot_fp8(r.weights, rows, 8, d));
    return _mm_add_ps(u, _mm_mul_ps(_mm_mul_ps(_mm_load_ps(lower), bias), dot_fp8(r.weights + d, rows, 8 + d, d)));
  });
}

}  // namespace oasis::kernels
#endif
