// The weight formats for AVX-512 with VNNI and BF16, for the two files that use them.
//
// Quantised weights are unsigned bytes u with value d * u + m per block of 32 (per 16 for Q6_K), so that
//   w . x = sum over blocks of d * scale * (u . q) + m * scale * sum(q),
// u . q in integers by vpdpbusd. Factors are unpacked for 16 blocks (a chunk) at a time, bytes for four (a quad), and
// arranged so that 32-bit lane 4 i + k of a register holds values 4 i .. 4 i + 3 of block k: then the four factors
// d * scale of a quad are repeated by one shuffle, and a quad is one sum in floats.
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

constexpr int kChunk = 16;  // blocks

// d and m of the blocks of a chunk; [1] of the second 16 values of each, set only where kHalves is 2. Zero past the end
// of the row.
struct Factors {
  __m512 d[2], m[2];
};

// Bytes u of the first and the second 16 values of four blocks, arranged as above.
struct Quad {
  __m512i first, second;
};

INLINE __m512i load512(const uint8_t* p) { return _mm512_loadu_si512(p); }
INLINE __m512i load128(const uint8_t* p) {
  return _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
INLINE __m512i load64(const uint8_t* p) {
  return _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
// Words of 16 bits from `at` on, of a sequence of which `words` are there; zero past them.
INLINE __m512i words_from(const uint8_t* p, int at, int words) {
  const int n = std::clamp(words - at, 0, 32);
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << n) - 1), p + 2 * at);
}

INLINE __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
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
INLINE __m512i load(const WordIndex& index) { return _mm512_load_si512(&index); }

// The halves at the start of n blocks.
template <int kBytes>
INLINE __m512 first_halves(const uint8_t* p, int n) {
  uint64_t words[4] = {};
#pragma GCC unroll 16
  for (int i = 0; i < kChunk; ++i) {
    if (i < n) {
      uint16_t half;
      std::memcpy(&half, p + i * kBytes, 2);
      words[i / 4] |= static_cast<uint64_t>(half) << i % 4 * 16;
    }
  }
  const auto w = [&](int i) { return static_cast<int64_t>(words[i]); };
  return _mm512_cvtph_ps(_mm256_setr_epi64x(w(0), w(1), w(2), w(3)));
}

// A format: factors(p, n) of the n <= 16 blocks at p, quad(p, j, n), the j-th quad of these.

struct Q4_0 {
  static constexpr DType kType = DType::kQ4_0;
  static constexpr int kHalves = 1;
  INLINE static Factors factors(const uint8_t* p, int n) {
    Factors f;
    f.d[0] = first_halves<18>(p, n);
    f.m[0] = _mm512_mul_ps(f.d[0], _mm512_set1_ps(-8));
    return f;
  }
  INLINE static Quad quad(const uint8_t* p, int j, int n) {
    static constexpr WordIndex kNibbles = arrangement(1, 9);
    p += 72 * j;
    n -= 4 * j;
    const __m512i a = n >= 4 ? load512(p) : words_from(p, 0, 9 * n);
    const __m512i b = n >= 4 ? load64(p + 64) : _mm512_setzero_si512();
    const __m512i v = _mm512_permutex2var_epi16(a, load(kNibbles), b);
    return {low_nibbles(v), high_nibbles(v)};
  }
};

struct Q4_1 {
  static constexpr DType kType = DType::kQ4_1;
  static constexpr int kHalves = 1;
  // A block is 5 words of 32 bits, d and m, then 4 of nibbles; a chunk is 5 registers.
  INLINE static Factors factors(const uint8_t* p, int n) {
    const auto load = [&](int r) { return n >= kChunk ? load512(p + 64 * r) : words_from(p, 32 * r, 10 * n); };
    const __m512i low = _mm512_setr_epi32(0, 5, 10, 15, 20, 25, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i middle = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 3, 8, 13, 18, 23, 28, 0, 0, 0);
    const __m512i high = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 6, 11);
    __m512i dm = _mm512_maskz_permutex2var_epi32(0x007f, load(0), low, load(1));
    if (n > 6) {
      dm = _mm512_or_si512(dm, _mm512_maskz_permutex2var_epi32(0x1f80, load(2), middle, load(3)));
      dm = _mm512_mask_permutexvar_epi32(dm, 0xe000, high, load(4));
    }
    Factors f;
    f.d[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dm));
    f.m[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(dm, 16)));
    return f;
  }
  INLINE static Quad quad(const uint8_t* p, int j, int n) {
    p += 80 * j;
    n -= 4 * j;
    const __m512i a = n >= 4 ? load512(p) : words_from(p, 0, 10 * n);
    const __m512i b = n >= 4 ? load128(p + 64) : _mm512_setzero_si512();
    const __m512i order = _mm512_setr_epi32(1, 6, 11, 16, 2, 7, 12, 17, 3, 8, 13, 18, 4, 9, 14, 19);
    const __m512i v = _mm512_permutex2var_epi32(a, order, b);
    return {low_nibbles(v), high_nibbles(v)};
  }
};

struct Q8_0 {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr int kHalves = 1;
  INLINE static Factors factors(const uint8_t* p, int n) {
    Factors f;
    f.d[0] = first_halves<34>(p, n);
    f.m[0] = _mm512_mul_ps(f.d[0], _mm512_set1_ps(-128));
    return f;
  }
  INLINE static Quad quad(const uint8_t* p, int j, int n) {
    // A block is 17 words, a quad 68: two registers that start at word 0 and two that end at word 68.
    static constexpr WordIndex kFirst = arrangement(1, 17), kSecond = arrangement(9 - 4, 17);
    p += 136 * j;
    n -= 4 * j;
    const bool full = n >= 4;
    const __m512i a = full ? load512(p) : words_from(p, 0, 17 * n);
    const __m512i b = full ? load512(p + 64) : words_from(p, 32, 17 * n);
    const __m512i c = full ? load512(p + 8) : words_from(p, 4, 17 * n);
    const __m512i e = full ? load512(p + 72) : words_from(p, 36, 17 * n);
    const __m512i flip = _mm512_set1_epi8(-128);  // u = value + 128
    return {_mm512_xor_si512(_mm512_permutex2var_epi16(a, load(kFirst), b), flip),
            _mm512_xor_si512(_mm512_permutex2var_epi16(c, load(kSecond), e), flip)};
  }
};

// From two registers that hold two blocks each, one after the other: b0 b1, b2 b3.
INLINE Quad arrange(__m512i b01, __m512i b23) {
  const __m512i first = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  const __m512i second = _mm512_setr_epi32(4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31);
  return {_mm512_permutex2var_epi32(b01, first, b23), _mm512_permutex2var_epi32(b01, second, b23)};
}
// b0 b2, b1 b3.
INLINE Quad arrange_02_13(__m512i b02, __m512i b13) {
  const __m512i first = _mm512_setr_epi32(0, 16, 8, 24, 1, 17, 9, 25, 2, 18, 10, 26, 3, 19, 11, 27);
  const __m512i second = _mm512_setr_epi32(4, 20, 12, 28, 5, 21, 13, 29, 6, 22, 14, 30, 7, 23, 15, 31);
  return {_mm512_permutex2var_epi32(b02, first, b13), _mm512_permutex2var_epi32(b02, second, b13)};
}

// Factors of the 8 sub-blocks of a Q4_K or Q5_K block.
struct KFactors {
  __m256 d, m;
};
INLINE KFactors k_factors(const uint8_t* block) {
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
  return {_mm256_mul_ps(floats(scales), _mm256_broadcastss_ps(halves)), _mm256_mul_ps(floats(mins), minus_dmin)};
}
INLINE Factors two_k_factors(const uint8_t* a, const uint8_t* b) {  // b null: there is no second block
  const KFactors x = k_factors(a), y = b ? k_factors(b) : KFactors{_mm256_setzero_ps(), _mm256_setzero_ps()};
  Factors f;
  f.d[0] = _mm512_insertf32x8(_mm512_castps256_ps512(x.d), y.d, 1);
  f.m[0] = _mm512_insertf32x8(_mm512_castps256_ps512(x.m), y.m, 1);
  return f;
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
  static constexpr int kHalves = 1;
  INLINE static Factors factors(const uint8_t* p, int n) { return two_k_factors(p, n > 8 ? p + 144 : nullptr); }
  INLINE static Quad quad(const uint8_t* p, int j, int) {
    const __m512i v = load512(p + j / 2 * 144 + 16 + j % 2 * 64);
    return arrange_02_13(low_nibbles(v), high_nibbles(v));
  }
};

struct Q5_K {
  static constexpr DType kType = DType::kQ5_K;
  static constexpr int kHalves = 1;
  INLINE static Factors factors(const uint8_t* p, int n) { return two_k_factors(p, n > 8 ? p + 176 : nullptr); }
  INLINE static Quad quad(const uint8_t* p, int j, int) {
    const uint8_t* block = p + j / 2 * 176;
    const int bit = j % 2 * 4;
    const __m512i v = load512(block + 48 + j % 2 * 64), bits = twice(block + 16), mask = _mm512_set1_epi8(16);
    const __m512i even = _mm512_and_si512(to_bit_4(bits, bit, bit + 2), mask);
    const __m512i odd = _mm512_and_si512(to_bit_4(bits, bit + 1, bit + 3), mask);
    return arrange_02_13(_mm512_or_si512(low_nibbles(v), even), _mm512_or_si512(high_nibbles(v), odd));
  }
};

struct Q6_K {
  static constexpr DType kType = DType::kQ6_K;
  static constexpr int kHalves = 2;
  INLINE static Factors factors(const uint8_t* p, int n) {
    const __m512 a = scales(p), b = n > 8 ? scales(p + 210) : _mm512_setzero_ps();
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    Factors f;
    f.d[0] = _mm512_permutex2var_ps(a, even, b);
    f.d[1] = _mm512_permutex2var_ps(a, odd, b);
    for (int h = 0; h < 2; ++h) f.m[h] = _mm512_mul_ps(f.d[h], _mm512_set1_ps(-32));
    return f;
  }
  // Of the 16 groups of 16 of a block.
  INLINE static __m512 scales(const uint8_t* block) {
    uint16_t half;
    std::memcpy(&half, block + 208, 2);
    const __m512i s = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192)));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(s), _mm512_set1_ps(_cvtsh_ss(half)));
  }
  INLINE static Quad quad(const uint8_t* p, int j, int) {
    const uint8_t* block = p + j / 2 * 210;
    const __m512i v = load512(block + j % 2 * 64), bits = twice(block + 128 + j % 2 * 32), mask = _mm512_set1_epi8(48);
    const __m512i low = _mm512_or_si512(low_nibbles(v), _mm512_and_si512(to_bit_4(bits, 0, 2), mask));
    const __m512i up = _mm512_or_si512(high_nibbles(v), _mm512_and_si512(to_bit_4(bits, 4, 6), mask));
    return arrange(low, up);
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
