// AVX2: up to 64 rows, quantised weights meet 8-bit activations in integers; the rest is fp32.
//
// A stretch of a weight row is unpacked to bytes u and factors with weight = d * u + m, and multiplied by every row of
// x:
//   w . x = sum over blocks of d * scale * (u . q) + m * scale * sum(q).
// Pairs of products are added in 16 bits (vpmaddubsw), which u <= 128 and |q| <= 127 cannot overflow.
#include <immintrin.h>

#include <cstring>

#include "oasis/kernels/matmul/matmul_f32.h"

namespace oasis::kernels::matmul {
namespace {

constexpr int kStretch = 64;  // blocks

// Factors of the first and the second 16 values of a block where those differ, else [0] of all. Zero from the last
// block up to a multiple of 8.
struct Stretch {
  alignas(64) uint8_t u[kStretch * kBlock];
  alignas(64) float d[2][kStretch], m[2][kStretch];
};

#define INLINE [[gnu::always_inline]] inline

INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
INLINE void store256(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
INLINE __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
INLINE __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
INLINE float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return _cvtsh_ss(bits);
}
// Bits [bit, bit + width) of every byte, as bits 4 and up.
INLINE __m256i bits_at_4(__m256i v, int bit, int width) {
  const __m256i shifted = _mm256_srl_epi16(v, _mm_cvtsi32_si128(bit));
  const __m256i mask = _mm256_set1_epi8(static_cast<char>((1 << width) - 1));
  return _mm256_slli_epi16(_mm256_and_si256(shifted, mask), 4);
}
// 16 bytes of nibbles: the low ones, then the high ones.
INLINE void unpack_nibbles(const uint8_t* p, uint8_t* u) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  store256(u, low_nibbles(_mm256_set_m128i(_mm_srli_epi16(v, 4), v)));
}

// A format unpacks kBlocks blocks at p to u, d and m at index 0.

struct Q4_0 {
  static constexpr int kBlocks = 1, kBytes = 18;
  static constexpr bool kHalves = false, kSigned = false;
  INLINE static void unpack(const uint8_t* p, uint8_t* u, float* d, float* m, float*, float*) {
    unpack_nibbles(p + 2, u);
    *d = half_at(p);
    *m = -8 * *d;
  }
};

struct Q4_1 {
  static constexpr int kBlocks = 1, kBytes = 20;
  static constexpr bool kHalves = false, kSigned = false;
  INLINE static void unpack(const uint8_t* p, uint8_t* u, float* d, float* m, float*, float*) {
    unpack_nibbles(p + 4, u);
    *d = half_at(p);
    *m = half_at(p + 2);
  }
};

struct Q8_0 {
  static constexpr int kBlocks = 1, kBytes = 34;
  static constexpr bool kHalves = false, kSigned = true;
  INLINE static void unpack(const uint8_t* p, uint8_t* u, float* d, float* m, float*, float*) {
    store256(u, load256(p + 2));
    *d = half_at(p);
    *m = 0;
  }
};

INLINE void k_factors(const uint8_t* p, float* d, float* m) {
  const float scale = half_at(p), min = -half_at(p + 2);
  const uint8_t* s = p + 4;
  for (int j = 0; j < 4; ++j) {
    d[j] = scale * static_cast<float>(s[j] & 63);
    m[j] = min * static_cast<float>(s[j + 4] & 63);
    d[j + 4] = scale * static_cast<float>((s[j + 8] & 15) | (s[j] >> 6) << 4);
    m[j + 4] = min * static_cast<float>((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
  }
}

struct Q4_K {
  static constexpr int kBlocks = 8, kBytes = 144;
  static constexpr bool kHalves = false, kSigned = false;
  INLINE static void unpack(const uint8_t* p, uint8_t* u, float* d, float* m, float*, float*) {
    k_factors(p, d, m);
    for (int j = 0; j < 8; j += 2) {
      const __m256i v = load256(p + 16 + 16 * j);
      store256(u + 32 * j, low_nibbles(v));
      store256(u + 32 * j + 32, high_nibbles(v));
    }
  }
};

struct Q5_K {
  static constexpr int kBlocks = 8, kBytes = 176;
  static constexpr bool kHalves = false, kSigned = false;
  INLINE static void unpack(const uint8_t* p, uint8_t* u, float* d, float* m, float*, float*) {
    k_factors(p, d, m);
    const __m256i high = load256(p + 16);
    for (int j = 0; j < 8; j += 2) {
      const __m256i v = load256(p + 48 + 16 * j);
      store256(u + 32 * j, _mm256_or_si256(low_nibbles(v), bits_at_4(high, j, 1)));
      store256(u + 32 * j + 32, _mm256_or_si256(high_nibbles(v), bits_at_4(high, j + 1, 1)));
    }
  }
};

struct Q6_K {
  static constexpr int kBlocks = 8, kBytes = 210;
  static constexpr bool kHalves = true, kSigned = false;
  INLINE static void unpack(const uint8_t* p, uint8_t* u, float* d, float* m, float* d2, float* m2) {
    const float scale = half_at(p + 208);
    const auto* scales = reinterpret_cast<const int8_t*>(p + 192);
    for (int j = 0; j < 8; ++j) {
      d[j] = scale * static_cast<float>(scales[2 * j]);
      d2[j] = scale * static_cast<float>(scales[2 * j + 1]);
      m[j] = -32 * d[j];
      m2[j] = -32 * d2[j];
    }
    for (int h = 0; h < 2; ++h) {
      const __m256i high = load256(p + 128 + 32 * h);
      for (int g = 0; g < 4; ++g) {
        const __m256i low = load256(p + 64 * h + 32 * (g % 2));
        store256(u + 128 * h + 32 * g,
                 _mm256_or_si256(g < 2 ? low_nibbles(low) : high_nibbles(low), bits_at_4(high, 2 * g, 2)));
      }
    }
  }
};

// sums[kRows] += the products of n blocks with blocks b0 .. b0 + n of rows `row` .. of x.
template <class Format, int kRows>
INLINE void multiply_stretch(const Stretch& w, int n, const PackedX& x, int64_t row, int64_t b0, __m256* sums) {
  constexpr int kParts = Format::kHalves ? 2 : 1;
  alignas(32) float factors[kRows][kParts][kStretch];
  __m256 s[kRows][2];  // of even and odd blocks
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const float* scale = x.scale + (row + r) * x.block_stride + b0;
    const float* sum = x.sum + ((row + r) * 3 + (Format::kHalves ? 0 : 2)) * x.block_stride + b0;
    s[r][0] = sums[r];
    s[r][1] = _mm256_setzero_ps();
    for (int part = 0; part < kParts; ++part) {
      for (int b = 0; b < n; b += 8) {
        const __m256 all = _mm256_loadu_ps(sum + part * x.block_stride + b);
        if (!Format::kSigned) s[r][1] = _mm256_fmadd_ps(_mm256_load_ps(&w.m[part][b]), all, s[r][1]);
        _mm256_store_ps(&factors[r][part][b], _mm256_mul_ps(_mm256_load_ps(&w.d[part][b]), _mm256_loadu_ps(scale + b)));
      }
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
  const int8_t* q = x.q + (row * x.block_stride + b0) * kBlock;
  const auto add_block = [&](int b, int parity) {
    const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(&w.u[b * kBlock]));
    const __m256i u = Format::kSigned ? _mm256_abs_epi8(v) : v;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __m256i values = load256(q + (r * x.block_stride + b) * kBlock);
      if (Format::kSigned) values = _mm256_sign_epi8(values, v);
      const __m256 dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_maddubs_epi16(u, values), ones));
      __m256 factor = _mm256_broadcast_ss(&factors[r][0][b]);
      if (Format::kHalves) factor = _mm256_insertf128_ps(factor, _mm_broadcast_ss(&factors[r][kParts - 1][b]), 1);
      s[r][parity] = _mm256_fmadd_ps(dot, factor, s[r][parity]);
    }
  };
  int b = 0;
  for (; b + 2 <= n; b += 2) {
    add_block(b, 0);
    add_block(b + 1, 1);
  }
  if (b < n) add_block(b, 0);
  for (int r = 0; r < kRows; ++r) sums[r] = _mm256_add_ps(s[r][0], s[r][1]);
}

template <class Format>
void direct_quantized(const DirectJob& job) {
  const PackedX& x = *job.x;
  const int64_t blocks = x.cols / kBlock, row_bytes = job.w.row_bytes();
  const auto* w = static_cast<const uint8_t*>(job.w.data) + job.first * row_bytes;
  Stretch s;
  for (int64_t i = 0; i < job.count; ++i, w += row_bytes) {
    __m256 sums[kDirectRows];
    for (int64_t row = 0; row < x.rows; ++row) sums[row] = _mm256_setzero_ps();
    for (int64_t b0 = 0; b0 < blocks; b0 += kStretch) {
      const int n = static_cast<int>(std::min<int64_t>(kStretch, blocks - b0));
      const uint8_t* p = w + b0 / Format::kBlocks * Format::kBytes;
#pragma GCC unroll 4
      for (int b = 0; b < n; b += Format::kBlocks, p += Format::kBytes)
        Format::unpack(p, s.u + b * kBlock, s.d[0] + b, s.m[0] + b, s.d[1] + b, s.m[1] + b);
      for (int b = n; b % 8; ++b) s.d[0][b] = s.d[1][b] = s.m[0][b] = s.m[1][b] = 0;
      int64_t row = 0;
      for (; row + 4 <= x.rows; row += 4) multiply_stretch<Format, 4>(s, n, x, row, b0, sums + row);
      for (; row + 2 <= x.rows; row += 2) multiply_stretch<Format, 2>(s, n, x, row, b0, sums + row);
      for (; row < x.rows; ++row) multiply_stretch<Format, 1>(s, n, x, row, b0, sums + row);
    }
    for (int64_t row = 0; row < x.rows; ++row) {
      float& y = job.y[row * job.y_stride + i];
      y = (job.accumulate ? y : 0.f) + sum8((F8)sums[row]);
    }
  }
}

void direct(const DirectJob& job) {
  switch (job.w.type) {
    case DType::kQ4_0:
      return direct_quantized<Q4_0>(job);
    case DType::kQ4_1:
      return direct_quantized<Q4_1>(job);
    case DType::kQ8_0:
      return direct_quantized<Q8_0>(job);
    case DType::kQ4_K:
      return direct_quantized<Q4_K>(job);
    case DType::kQ5_K:
      return direct_quantized<Q5_K>(job);
    case DType::kQ6_K:
      return direct_quantized<Q6_K>(job);
    default:
      return direct_f32(job);
  }
}

INLINE int sum8_int(__m256i v) {
  const __m128i h = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const __m128i q = _mm_add_epi32(h, _mm_unpackhi_epi64(h, h));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 1)));
}

void quantize_row(const PackedX& x, int64_t row) {
  const int64_t blocks = x.cols / kBlock;
  int8_t* q = x.q + row * x.block_stride * kBlock;
  float* scale = x.scale + row * x.block_stride;
  float* sum = x.sum + row * 3 * x.block_stride;
  for (int64_t b = 0; b < blocks; ++b) {
    const float* from = x.x + row * x.x_stride + b * kBlock;
    __m256 v[4];
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(from + 8 * i);
      // As integers, so that a NaN is the largest and makes the whole block NaN.
      top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_unpackhi_epi64(m, m));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 1));
    const float amax = _mm_cvtss_f32(_mm_castsi128_ps(m));
    const __m256 inverse = _mm256_set1_ps(amax > 0 ? 127.f / amax : 0.f);
    __m256i w[4];
    for (int i = 0; i < 4; ++i) w[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
    store256(q + b * kBlock, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    scale[b] = amax / 127.f;
    sum[b] = scale[b] * static_cast<float>(sum8_int(_mm256_add_epi32(w[0], w[1])));
    sum[x.block_stride + b] = scale[b] * static_cast<float>(sum8_int(_mm256_add_epi32(w[2], w[3])));
    sum[2 * x.block_stride + b] = sum[b] + sum[x.block_stride + b];
  }
  const int64_t padding = x.block_stride - blocks;
  std::fill_n(scale + blocks, padding, 0.f);
  for (int i = 0; i < 3; ++i) std::fill_n(sum + i * x.block_stride + blocks, padding, 0.f);
}

}  // namespace

const Level& avx2_level() {
  static constexpr Level kLevel{.quantize_row = quantize_row,
                                .round_row = nullptr,
                                .direct = direct,
                                .tile = tile_f32<6, 2>,
                                .tile_features = 32};
  return kLevel;
}

}  // namespace oasis::kernels::matmul
