// The weight formats for AVX-512 with VNNI and BF16, for the two files that use them.
//
// Quantised weights are unsigned bytes u with value d * u + m per block of 32 (per 16 for Q6_K), so that
//   w . x = sum over blocks of d * scale * (u . q) + m * scale * sum(q),
// u . q in integers by vpdpbusd. Four blocks (a quad) are taken at a time, their values arranged so that 32-bit lane
// 4 i + k of a register holds values 4 i .. 4 i + 3 of block k. So the four scales of x, adjacent in memory, are
// broadcast by the load itself, and a quad has one sum in floats.
//
// Everything has internal linkage: no code compiled for this instruction set is shared with files that are not.
#pragma once

// g++ 12 takes the undefined operands of its own intrinsics for uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "oasis/kernels/matmul/matmul_kernels.h"

namespace oasis::kernels::matmul {
namespace {

#define INLINE [[gnu::always_inline]] inline

// Four blocks. Where the row ends before the fourth, the rest is zero.
struct Quad {
  __m512i first, second;  // u of the first and the second 16 values of each block, arranged as above
  __m512 d[2];            // of those, repeated in every quarter; [1] is set only where kHalves is 2
  __m128 m[2];
};

// Words [at, end) of 16 bits from a sequence of which `words` are there.
INLINE __m512i words_from(const uint8_t* p, int at, int words) {
  const int n = std::clamp(words - at, 0, 32);
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << n) - 1), p + 2 * at);
}
INLINE __m512i load512(const uint8_t* p) { return _mm512_loadu_si512(p); }
INLINE __m512i load128(const uint8_t* p) {
  return _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
INLINE __m512i load64(const uint8_t* p) {
  return _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

INLINE __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
INLINE __m512 halves_to_float(__m512i v) { return _mm512_cvtph_ps(_mm512_castsi512_si256(v)); }
INLINE __m512 four_times(__m128 v) { return _mm512_broadcast_f32x4(v); }

// Index of an arrangement: lane 4 i + k takes words start + stride * k + 2 i and the next.
struct WordIndex {
  alignas(64) int16_t word[32];
};
constexpr WordIndex arrangement(int start, int stride) {
  WordIndex index{};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 4; ++k)
      for (int j = 0; j < 2; ++j) index.word[8 * i + 2 * k + j] = static_cast<int16_t>(start + stride * k + 2 * i + j);
  return index;
}
// The word of each of four blocks, over and over.
constexpr WordIndex repeated(int start, int stride) {
  WordIndex index{};
  for (int i = 0; i < 32; ++i) index.word[i] = static_cast<int16_t>(start + stride * (i % 4));
  return index;
}
INLINE __m512i load(const WordIndex& index) { return _mm512_load_si512(&index); }

// A format has kQuads quads in a unit; unit(p, n, q) unpacks the n blocks (4 * kQuads but at the end of a row) at p.

struct Q4_0 {
  static constexpr DType kType = DType::kQ4_0;
  static constexpr int kQuads = 1, kHalves = 1;
  INLINE static void unit(const uint8_t* p, int n, Quad* q) {
    static constexpr WordIndex kNibbles = arrangement(1, 9), kFactors = repeated(0, 9);
    const __m512i a = n == 4 ? load512(p) : words_from(p, 0, 9 * n);
    const __m512i b = n == 4 ? load64(p + 64) : _mm512_setzero_si512();
    const __m512i v = _mm512_permutex2var_epi16(a, load(kNibbles), b);
    q->first = low_nibbles(v);
    q->second = high_nibbles(v);
    q->d[0] = halves_to_float(_mm512_permutexvar_epi16(load(kFactors), a));
    q->m[0] = _mm_mul_ps(_mm512_castps512_ps128(q->d[0]), _mm_set1_ps(-8));
  }
};

struct Q4_1 {
  static constexpr DType kType = DType::kQ4_1;
  static constexpr int kQuads = 1, kHalves = 1;
  INLINE static void unit(const uint8_t* p, int n, Quad* q) {
    // A block is 5 words of 32 bits: d and m, then 4 of nibbles.
    const __m512i a = n == 4 ? load512(p) : words_from(p, 0, 10 * n);
    const __m512i b = n == 4 ? load128(p + 64) : _mm512_setzero_si512();
    const __m512i order = _mm512_setr_epi32(1, 6, 11, 16, 2, 7, 12, 17, 3, 8, 13, 18, 4, 9, 14, 19);
    const __m512i v = _mm512_permutex2var_epi32(a, order, b);
    q->first = low_nibbles(v);
    q->second = high_nibbles(v);
    static constexpr WordIndex kFactors = [] {
      WordIndex index = repeated(0, 10);
      for (int i = 16; i < 32; ++i) ++index.word[i];
      return index;
    }();
    const __m512i factors = _mm512_permutexvar_epi16(load(kFactors), a);  // d 16 times, m 16 times
    q->d[0] = halves_to_float(factors);
    q->m[0] = _mm_cvtph_ps(_mm512_extracti32x4_epi32(factors, 2));
  }
};

struct Q8_0 {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr int kQuads = 1, kHalves = 1;
  INLINE static void unit(const uint8_t* p, int n, Quad* q) {
    // A block is 17 words, a quad 68: two registers that start at word 0 and two that end at word 68.
    static constexpr WordIndex kFirst = arrangement(1, 17), kSecond = arrangement(9 - 4, 17),
                               kFactors = repeated(0, 17);
    const bool full = n == 4;
    const __m512i a = full ? load512(p) : words_from(p, 0, 17 * n);
    const __m512i b = full ? load512(p + 64) : words_from(p, 32, 17 * n);
    const __m512i c = full ? load512(p + 8) : words_from(p, 4, 17 * n);
    const __m512i e = full ? load512(p + 72) : words_from(p, 36, 17 * n);
    const __m512i flip = _mm512_set1_epi8(-128);  // u = value + 128
    q->first = _mm512_xor_si512(_mm512_permutex2var_epi16(a, load(kFirst), b), flip);
    q->second = _mm512_xor_si512(_mm512_permutex2var_epi16(c, load(kSecond), e), flip);
    q->d[0] = halves_to_float(_mm512_permutex2var_epi16(a, load(kFactors), b));
    q->m[0] = _mm_mul_ps(_mm512_castps512_ps128(q->d[0]), _mm_set1_ps(-128));
  }
};

// From two registers that hold two blocks each, one after the other: b0 b1, b2 b3.
INLINE void arrange(__m512i b01, __m512i b23, Quad* q) {
  const __m512i first = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  q->first = _mm512_permutex2var_epi32(b01, first, b23);
  q->second = _mm512_permutex2var_epi32(b01, _mm512_add_epi32(first, _mm512_set1_epi32(4)), b23);
}
// b0 b2, b1 b3.
INLINE void arrange_02_13(__m512i b02, __m512i b13, Quad* q) {
  const __m512i first = _mm512_setr_epi32(0, 16, 8, 24, 1, 17, 9, 25, 2, 18, 10, 26, 3, 19, 11, 27);
  q->first = _mm512_permutex2var_epi32(b02, first, b13);
  q->second = _mm512_permutex2var_epi32(b02, _mm512_add_epi32(first, _mm512_set1_epi32(4)), b13);
}

// Factors of the 8 sub-blocks of a Q4_K or Q5_K block.
INLINE void k_factors(const uint8_t* block, Quad* q) {
  uint32_t head, s[3];
  std::memcpy(&head, block, 4);
  std::memcpy(s, block + 4, 12);
  const __m128 halves = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(head)));
  const uint32_t six = 0x3f3f3f3f, low = 0x0f0f0f0f, two = 0x03030303;
  const uint64_t scales = (s[0] & six) | static_cast<uint64_t>((s[2] & low) | (s[0] >> 6 & two) << 4) << 32;
  const uint64_t mins = (s[1] & six) | static_cast<uint64_t>((s[2] >> 4 & low) | (s[1] >> 6 & two) << 4) << 32;
  const auto floats = [](uint64_t bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes))));
  };
  const __m256 minus_dmin = _mm256_broadcastss_ps(_mm_xor_ps(_mm_movehdup_ps(halves), _mm_set1_ps(-0.f)));
  const __m256 d = _mm256_mul_ps(floats(scales), _mm256_broadcastss_ps(halves));
  const __m256 m = _mm256_mul_ps(floats(mins), minus_dmin);
  q[0].d[0] = four_times(_mm256_castps256_ps128(d));
  q[1].d[0] = four_times(_mm256_extractf128_ps(d, 1));
  q[0].m[0] = _mm256_castps256_ps128(m);
  q[1].m[0] = _mm256_extractf128_ps(m, 1);
}

// Rotates the words of the lower and upper 32 bytes so that bit `low` and `high` of each byte come to bit 4 (what was
// above them follows).
INLINE __m512i to_bit_4(__m512i v, int low, int high) {
  const __m512i by = _mm512_inserti64x4(_mm512_set1_epi32(low - 4), _mm256_set1_epi32(high - 4), 1);
  return _mm512_rorv_epi32(v, by);
}
INLINE __m512i twice(const uint8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

struct Q4_K {
  static constexpr DType kType = DType::kQ4_K;
  static constexpr int kQuads = 2, kHalves = 1;
  INLINE static void unit(const uint8_t* p, int, Quad* q) {
    k_factors(p, q);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512i v = load512(p + 16 + 64 * h);
      arrange_02_13(low_nibbles(v), high_nibbles(v), &q[h]);
    }
  }
};

struct Q5_K {
  static constexpr DType kType = DType::kQ5_K;
  static constexpr int kQuads = 2, kHalves = 1;
  INLINE static void unit(const uint8_t* p, int, Quad* q) {
    k_factors(p, q);
    const __m512i bits = twice(p + 16), mask = _mm512_set1_epi8(16);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512i v = load512(p + 48 + 64 * h);
      const __m512i even = _mm512_and_si512(to_bit_4(bits, 4 * h, 4 * h + 2), mask);
      const __m512i odd = _mm512_and_si512(to_bit_4(bits, 4 * h + 1, 4 * h + 3), mask);
      arrange_02_13(_mm512_or_si512(low_nibbles(v), even), _mm512_or_si512(high_nibbles(v), odd), &q[h]);
    }
  }
};

struct Q6_K {
  static constexpr DType kType = DType::kQ6_K;
  static constexpr int kQuads = 2, kHalves = 2;
  INLINE static void unit(const uint8_t* p, int, Quad* q) {
    uint16_t half;
    std::memcpy(&half, p + 208, 2);
    const __m512i scales = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 192)));
    const __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(scales), _mm512_set1_ps(_cvtsh_ss(half)));
    const __m512i mask = _mm512_set1_epi8(48);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512i v = load512(p + 64 * h), bits = twice(p + 128 + 32 * h);
      const __m512i low = _mm512_or_si512(low_nibbles(v), _mm512_and_si512(to_bit_4(bits, 0, 2), mask));
      const __m512i up = _mm512_or_si512(high_nibbles(v), _mm512_and_si512(to_bit_4(bits, 4, 6), mask));
      arrange(low, up, &q[h]);
#pragma GCC unroll 2
      for (int half16 = 0; half16 < 2; ++half16) {
        const __m512i every = _mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6);
        q[h].d[half16] = _mm512_permutexvar_ps(_mm512_add_epi32(every, _mm512_set1_epi32(8 * h + half16)), s);
        q[h].m[half16] = _mm_mul_ps(_mm512_castps512_ps128(q[h].d[half16]), _mm_set1_ps(-32));
      }
    }
  }
};

// Plain weights: kStep columns at p become one register; multiply adds its product with the same columns of a row of x.

INLINE __mmask16 mask16(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

struct F32 {
  static constexpr int kStep = 16;
  using Register = __m512;
  INLINE static Register weights(const uint8_t* p, int64_t n) { return _mm512_maskz_loadu_ps(mask16(n), p); }
  INLINE static __m512 multiply(const PackedX& x, int64_t row, int64_t k, Register w, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask16(x.cols - k), x.x + row * x.x_stride + k), w, sum);
  }
};

struct F16 : F32 {
  INLINE static Register weights(const uint8_t* p, int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask16(n), p));
  }
};

struct BF16 {
  static constexpr int kStep = 32;
  using Register = __m512bh;
  INLINE static Register weights(const uint8_t* p, int64_t n) {
    const auto mask = static_cast<__mmask32>(n >= 32 ? ~0u : (1u << n) - 1);
    return (__m512bh)_mm512_maskz_loadu_epi16(mask, p);
  }
  INLINE static __m512 multiply(const PackedX& x, int64_t row, int64_t k, Register w, __m512 sum) {
    return _mm512_dpbf16_ps(sum, w, (__m512bh)_mm512_loadu_si512(x.bits + row * x.bits_stride + k));
  }
};

// 16 x 16 words, rows `stride` bytes apart -> columns, `out_stride` bytes apart.
INLINE void transpose_words(const void* from, int64_t stride, void* to, int64_t out_stride) {
  const auto* in = static_cast<const std::byte*>(from);
  auto* out = static_cast<std::byte*>(to);
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = _mm512_load_si512(in + i * stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // Lane group g of a[4 j + c]: column 4 g + c of rows 4 j .. 4 j + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i r02 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88), r13 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
    const __m512i s02 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    const __m512i s13 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    _mm512_store_si512(out + c * out_stride, _mm512_shuffle_i32x4(r02, s02, 0x88));
    _mm512_store_si512(out + (4 + c) * out_stride, _mm512_shuffle_i32x4(r13, s13, 0x88));
    _mm512_store_si512(out + (8 + c) * out_stride, _mm512_shuffle_i32x4(r02, s02, 0xdd));
    _mm512_store_si512(out + (12 + c) * out_stride, _mm512_shuffle_i32x4(r13, s13, 0xdd));
  }
}

}  // namespace
}  // namespace oasis::kernels::matmul
