// The weight formats for AVX-512 with VNNI and BF16, for the two files that use them.
//
// Quantised weights are unsigned bytes u with value d * u + m per block of 32 (per 16 for Q6_K), so that
//   w . x = sum over blocks of d * scale * (u . q) + m * scale * sum(q),
// u . q in integers by vpdpbusd. Four blocks (a quad) are taken at a time, their values arranged so that 32-bit lane
// 4 i + k of a register holds values 4 i .. 4 i + 3 of block k: then the four factors d * scale, adjacent in memory,
// are broadcast by the load itself.
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

constexpr int kChunk = 128;  // blocks whose factors are held at a time

// Factors of the blocks of a chunk, of the first and the second 16 values of each where those differ. Zero from the
// last block up to a multiple of 16.
struct Factors {
  alignas(64) float d[2][kChunk];
  alignas(64) float m[2][kChunk];
};

// A quad: the first and the second 16 values of each block, arranged as above.
struct Quad {
  __m512i first, second;
};

INLINE __m512i from_two_halves(const void* low, const void* high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(low))),
                            _mm256_loadu_si256(static_cast<const __m256i*>(high)), 1);
}
INLINE __m512i from_four_quarters(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
  const auto load = [](const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load(a)), load(b), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(load(c)), load(d), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
INLINE __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }

// From the blocks of a quad laid end to end (two in each register).
INLINE Quad arrange(__m512i blocks01, __m512i blocks23) {
  const __m512i first = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  return {_mm512_permutex2var_epi32(blocks01, first, blocks23), _mm512_permutex2var_epi32(blocks01, second, blocks23)};
}

// The 16 halves at p, p + stride, ..., of which the first n are read; the others are zero.
INLINE __m512 strided_halves(const uint8_t* p, int stride, int n) {
  alignas(32) uint16_t h[16] = {};
  if (n >= 16) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) std::memcpy(&h[i], p + i * stride, 2);
  } else {
    for (int i = 0; i < n; ++i) std::memcpy(&h[i], p + i * stride, 2);
  }
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(h)));
}

// Distance of blocks 1, 2 and 3 of a quad from its start. Blocks past the end of the row read its last one again (their
// activations are zero).
struct Offsets {
  int64_t block[4];
};
INLINE Offsets offsets(int blocks, int bytes) {
  Offsets o;
  for (int i = 0; i < 4; ++i) o.block[i] = std::min(i, blocks - 1) * bytes;
  return o;
}

// A format: factors(p, n, f) of the n <= kChunk blocks at p, and quad(p, q, n), the q-th quad of these blocks.

struct Q4_0 {
  static constexpr int kHalves = 1;
  static void factors(const uint8_t* p, int n, Factors& f) {
    for (int i = 0; i < n; i += 16) {
      const __m512 d = strided_halves(p + i * 18, 18, n - i);
      _mm512_store_ps(f.d[0] + i, d);
      _mm512_store_ps(f.m[0] + i, _mm512_mul_ps(d, _mm512_set1_ps(-8)));
    }
  }
  INLINE static Quad quad(const uint8_t* p, int q, int n) { return nibbles(p + q * 72 + 2, offsets(n - 4 * q, 18)); }
  INLINE static Quad nibbles(const uint8_t* p, const Offsets& o) {
    const __m512i v = from_four_quarters(p, p + o.block[1], p + o.block[2], p + o.block[3]);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i arranged = _mm512_permutexvar_epi32(order, v);
    return {low_nibbles(arranged), high_nibbles(arranged)};
  }
};

struct Q4_1 {
  static constexpr int kHalves = 1;
  // 16 blocks are 80 words; word 5 i holds d and m of block i.
  static void factors(const uint8_t* p, int n, Factors& f) {
    for (int i = 0; i < n; i += 16) {
      const uint8_t* at = p + i * 20;
      const int words = std::min(n - i, 16) * 5;
      const auto load = [&](int r) {
        const int left = std::clamp(words - 16 * r, 0, 16);
        return _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << left) - 1), at + 64 * r);
      };
      const __m512i low = _mm512_setr_epi32(0, 5, 10, 15, 20, 25, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0);
      const __m512i middle = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 3, 8, 13, 18, 23, 28, 0, 0, 0);
      const __m512i high = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 6, 11);
      __m512i dm = _mm512_maskz_permutex2var_epi32(0x007f, load(0), low, load(1));
      dm = _mm512_or_si512(dm, _mm512_maskz_permutex2var_epi32(0x1f80, load(2), middle, load(3)));
      dm = _mm512_mask_permutexvar_epi32(dm, 0xe000, high, load(4));
      _mm512_store_ps(f.d[0] + i, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dm)));
      _mm512_store_ps(f.m[0] + i, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(dm, 16))));
    }
  }
  INLINE static Quad quad(const uint8_t* p, int q, int n) {
    return Q4_0::nibbles(p + q * 80 + 4, offsets(n - 4 * q, 20));
  }
};

struct Q8_0 {
  static constexpr int kHalves = 1;
  static void factors(const uint8_t* p, int n, Factors& f) {
    for (int i = 0; i < n; i += 16) {
      const __m512 d = strided_halves(p + i * 34, 34, n - i);
      _mm512_store_ps(f.d[0] + i, d);
      _mm512_store_ps(f.m[0] + i, _mm512_mul_ps(d, _mm512_set1_ps(-128)));
    }
  }
  INLINE static Quad quad(const uint8_t* p, int q, int n) {
    p += q * 136 + 2;
    const Offsets o = offsets(n - 4 * q, 34);
    const __m512i flip = _mm512_set1_epi8(-128);
    const Quad v = arrange(from_two_halves(p, p + o.block[1]), from_two_halves(p + o.block[2], p + o.block[3]));
    return {_mm512_xor_si512(v.first, flip), _mm512_xor_si512(v.second, flip)};
  }
};

// Factors of the 8 sub-blocks of a Q4_K or Q5_K block.
INLINE void k_factors(const uint8_t* block, float* d, float* m) {
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
  const __m256 dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(halves));
  _mm256_store_ps(d, _mm256_mul_ps(floats(scales), _mm256_broadcastss_ps(halves)));
  _mm256_store_ps(m, _mm256_mul_ps(floats(mins), _mm256_sub_ps(_mm256_setzero_ps(), dmin)));
}

INLINE void zero_to_16(int n, float* values) {
  if (n % 16) _mm256_store_ps(values + n, _mm256_setzero_ps());  // n is a multiple of 8
}

// From the sub-blocks {0, 2} and {1, 3} of a quad, two in each register.
INLINE Quad arrange_02_13(__m512i even, __m512i odd) {
  const __m512i first = _mm512_setr_epi32(0, 16, 8, 24, 1, 17, 9, 25, 2, 18, 10, 26, 3, 19, 11, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  return {_mm512_permutex2var_epi32(even, first, odd), _mm512_permutex2var_epi32(even, second, odd)};
}

// Moves bit `low` of every byte of the lower 32 bytes, and bit `high` of the upper 32, to bit 4 (as the bits above
// them).
INLINE __m512i to_bit_4(__m512i v, int low, int high) {
  const __m512i by = _mm512_inserti64x4(_mm512_set1_epi32(low - 4), _mm256_set1_epi32(high - 4), 1);
  return _mm512_rorv_epi32(v, by);
}

struct Q4_K {
  static constexpr int kHalves = 1;
  static void factors(const uint8_t* p, int n, Factors& f) {
    for (int i = 0; i < n; i += 8) k_factors(p + i / 8 * 144, f.d[0] + i, f.m[0] + i);
    zero_to_16(n, f.d[0]);
    zero_to_16(n, f.m[0]);
  }
  INLINE static Quad quad(const uint8_t* p, int q, int) {
    const __m512i v = _mm512_loadu_si512(p + q / 2 * 144 + 16 + q % 2 * 64);
    return arrange_02_13(low_nibbles(v), high_nibbles(v));
  }
};

struct Q5_K {
  static constexpr int kHalves = 1;
  static void factors(const uint8_t* p, int n, Factors& f) {
    for (int i = 0; i < n; i += 8) k_factors(p + i / 8 * 176, f.d[0] + i, f.m[0] + i);
    zero_to_16(n, f.d[0]);
    zero_to_16(n, f.m[0]);
  }
  INLINE static Quad quad(const uint8_t* p, int q, int) {
    const uint8_t* block = p + q / 2 * 176;
    const int bit = q % 2 * 4;
    const __m512i v = _mm512_loadu_si512(block + 48 + q % 2 * 64), mask = _mm512_set1_epi8(16);
    const __m512i bits = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 16)));
    const __m512i even = _mm512_and_si512(to_bit_4(bits, bit, bit + 2), mask);
    const __m512i odd = _mm512_and_si512(to_bit_4(bits, bit + 1, bit + 3), mask);
    return arrange_02_13(_mm512_or_si512(low_nibbles(v), even), _mm512_or_si512(high_nibbles(v), odd));
  }
};

struct Q6_K {
  static constexpr int kHalves = 2;
  static void factors(const uint8_t* p, int n, Factors& f) {
    for (int i = 0; i < n; i += 8) {
      const uint8_t* block = p + i / 8 * 210;
      uint16_t half;
      std::memcpy(&half, block + 208, 2);
      const __m512 d = _mm512_set1_ps(_cvtsh_ss(half));
      const __m512i scales = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192)));
      const __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(scales), d);
      const __m512i by_half = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
      const __m512 v = _mm512_permutexvar_ps(by_half, s), m = _mm512_mul_ps(v, _mm512_set1_ps(-32));
      _mm256_store_ps(f.d[0] + i, _mm512_castps512_ps256(v));
      _mm256_store_ps(f.d[1] + i, _mm512_extractf32x8_ps(v, 1));
      _mm256_store_ps(f.m[0] + i, _mm512_castps512_ps256(m));
      _mm256_store_ps(f.m[1] + i, _mm512_extractf32x8_ps(m, 1));
    }
    for (int half = 0; half < 2; ++half) {
      zero_to_16(n, f.d[half]);
      zero_to_16(n, f.m[half]);
    }
  }
  INLINE static Quad quad(const uint8_t* p, int q, int) {
    const uint8_t* block = p + q / 2 * 210;
    const __m512i v = _mm512_loadu_si512(block + q % 2 * 64), mask = _mm512_set1_epi8(48);
    const auto* high = reinterpret_cast<const __m256i*>(block + 128 + q % 2 * 32);
    const __m512i bits = _mm512_broadcast_i64x4(_mm256_loadu_si256(high));
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

}  // namespace
}  // namespace oasis::kernels::matmul
