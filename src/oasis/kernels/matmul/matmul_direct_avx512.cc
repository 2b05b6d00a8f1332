// Up to 64 rows: dot products with the weights as they lie.
#include <array>

#include "oasis/kernels/matmul/matmul_avx512.h"
#include "oasis/kernels/matmul/matmul_kernels.h"

namespace oasis::kernels::matmul {
namespace {

constexpr int kGroup = 16;  // weight rows whose lanes are added up together

// Activations of 16 bits are 256 high + low: u . q is two sums, the first shifted by 8 before it takes up the second
// (u < 256, so 32 products fit 32 bits). A quad of x is the high bytes of four blocks, then the low ones; each the
// first 16 values of all four, then the second.
constexpr int64_t kWideRows = 16;
constexpr int64_t kHigh = 4 * kBlock;

// The factors of a chunk with kRows rows of x from block b on: minimums go to the sums, d * scale is kept.
template <int kHalves, int kRows>
struct ScaledFactors {
  __m512 d[kRows][kHalves];

  INLINE ScaledFactors(const Factors& f, const PackedX& x, int64_t b, __m512* sums) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512 scale = _mm512_load_ps(x.scale + r * x.block_stride + b);
      const float* sum = x.sum + r * 3 * x.block_stride + b;
      for (int h = 0; h < kHalves; ++h) {
        d[r][h] = _mm512_mul_ps(f.d[h], scale);
        sums[r] = _mm512_fmadd_ps(f.m[h], _mm512_load_ps(sum + (kHalves == 2 ? h : 2) * x.block_stride), sums[r]);
      }
    }
  }
};

// Adds the product of quad j of a chunk with row r of x, q its bytes there: 16 bits a value.
template <int j, int kHalves, int kRows>
INLINE void add_product(const Quad& w, const ScaledFactors<kHalves, kRows>& f, int r, const int8_t* q, __m512* sum) {
  const auto factor = [&](int h) { return _mm512_shuffle_f32x4(f.d[r][h], f.d[r][h], j * 0x55); };
  const auto dot = [&](__m512i to, __m512i u, int at) { return _mm512_dpbusd_epi32(to, u, _mm512_load_si512(q + at)); };
  const __m512i zero = _mm512_setzero_si512();
  if constexpr (kHalves == 1) {
    const __m512i high = dot(dot(zero, w.first, 0), w.second, 64);
    const __m512i both = dot(dot(_mm512_slli_epi32(high, 8), w.first, 128), w.second, 192);
    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), factor(0), *sum);
  } else {
    const __m512i first = dot(_mm512_slli_epi32(dot(zero, w.first, 0), 8), w.first, 128);
    const __m512i second = dot(_mm512_slli_epi32(dot(zero, w.second, 64), 8), w.second, 192);
    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), factor(0), *sum);
    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(second), factor(1), *sum);
  }
}

// Lane i: the sum of the lanes of v[i], i < 4.
INLINE __m128 sum_each(const __m512* v) {
  __m256 h[4];
  for (int i = 0; i < 4; ++i) h[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i]), _mm512_extractf32x8_ps(v[i], 1));
  const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(h[0], h[1]), _mm256_hadd_ps(h[2], h[3]));
  return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

// Lanes of a group of weight rows, [row of x][weight row], summed -> y. Reads weight rows up to a multiple of 4.
template <class Lanes>
INLINE void write_group(const DirectJob& job, int64_t row, int64_t rows, int64_t i0, int64_t count,
                        const Lanes& lanes) {
  for (int64_t r = 0; r < rows; ++r) {
    float* y = job.y + (row + r) * job.y_stride + i0;
    for (int64_t i = 0; i < count; i += 4) {
      const auto mask = static_cast<__mmask8>((1u << std::min<int64_t>(count - i, 4)) - 1);
      __m128 s = sum_each(&lanes[r][i]);
      if (job.accumulate) s = _mm_add_ps(s, _mm_maskz_loadu_ps(mask, y + i));
      _mm_mask_storeu_ps(y + i, mask, s);
    }
  }
}

// sums[r] += the product of the n blocks at p with blocks b .. of row r of x.
template <class Format, int kRows>
INLINE void multiply_chunk(const uint8_t* p, int n, const PackedX& x, int64_t b, __m512* sums) {
  const ScaledFactors<Format::kHalves, kRows> factors(Format::factors(p, n), x, b, sums);
  const auto add = [&]<int j>() {
    if (4 * j >= n) return;
    const Quad w = Format::quad(p, j, n);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
      add_product<j>(w, factors, r, x.q + (r * x.block_stride + b + 4 * j) * kBlock * 2, &sums[r]);
  };
  add.template operator()<0>();
  add.template operator()<1>();
  add.template operator()<2>();
  add.template operator()<3>();
}

// Up to 4 rows of x, in 16 bits: unpacked weights stay in registers.
template <class Format, int kRows>
void few_rows(const DirectJob& job) {
  const PackedX x = *job.x;
  const int64_t blocks = x.cols / kBlock, row_bytes = job.w.row_bytes();
  const auto* w = static_cast<const uint8_t*>(job.w.data) + job.first * row_bytes;
  __m512 lanes[kRows][kGroup] = {};
  for (int64_t i0 = 0; i0 < job.count; i0 += kGroup) {
    const int64_t count = std::min<int64_t>(kGroup, job.count - i0);
    for (int64_t i = 0; i < count; ++i, w += row_bytes) {
      __m512 sums[kRows] = {};
      const uint8_t* p = w;
      int64_t b = 0;
      for (; b + kChunk <= blocks; b += kChunk, p += bytes_of(Format::kType, kChunk * kBlock))
        multiply_chunk<Format, kRows>(p, kChunk, x, b, sums);
      if (b < blocks) multiply_chunk<Format, kRows>(p, static_cast<int>(blocks - b), x, b, sums);
      for (int r = 0; r < kRows; ++r) lanes[r][i] = sums[r];
    }
    write_group(job, 0, kRows, i0, count, lanes);
  }
}

constexpr int kPanel = 32;  // weight rows

// Factors of a chunk of 32 weight rows, those with m at 1, and of the second 16 values of a block at 2 and 3.
struct PanelFactors {
  __m512 of[4][kPanel];
};
// A quad of 32 weight rows, a lane a row.
struct Panel {
  __m512i u[2][16][2];     // word 4 i + k of the first and of the second 16 values; then two times 16 rows
  __m512 factor[4][4][2];  // as above, of block k
};

// Row i of `count` weight rows at w; those up to 32 repeat the last.
INLINE const uint8_t* row_of(const uint8_t* w, int64_t row_bytes, int64_t count, int64_t i) {
  return w + std::min(i, count - 1) * row_bytes;
}

template <class Format>
void unpack_factors(const uint8_t* w, int64_t row_bytes, int64_t count, int n, PanelFactors* out) {
  for (int64_t i = 0; i < kPanel; ++i) {
    const Factors f = Format::factors(row_of(w, row_bytes, count, i), n);
    for (int h = 0; h < Format::kHalves; ++h) {
      out->of[2 * h][i] = f.d[h];
      out->of[2 * h + 1][i] = f.m[h];
    }
  }
}

template <class Format>
void unpack_panel(const uint8_t* w, int64_t row_bytes, int64_t count, int j, int n, const PanelFactors& factors,
                  Panel* out) {
  __m512i u[2][kPanel];
  for (int64_t i = 0; i < kPanel; ++i) {
    const Quad q = Format::quad(row_of(w, row_bytes, count, i), j, n);
    u[0][i] = q.first;
    u[1][i] = q.second;
  }
  for (int part = 0; part < 2; ++part)
    for (int g = 0; g < 2; ++g) transpose_words(&u[part][16 * g], 64, &out->u[part][0][g], 128);
  for (int f = 0; f < 2 * Format::kHalves; ++f) {
    const float* from = reinterpret_cast<const float*>(factors.of[f]) + 4 * j;
    auto* to = reinterpret_cast<float*>(out->factor[f]);  // [block, row]
    for (int i = 0; i < kPanel; i += 4) {
      __m128 v[4];
      for (int r = 0; r < 4; ++r) v[r] = _mm_load_ps(from + (i + r) * kChunk);
      _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
      for (int k = 0; k < 4; ++k) _mm_store_ps(to + k * kPanel + i, v[k]);
    }
  }
}

// sums[kRows][2] += products of a panel with blocks b .. b + 3 of rows `row` .. of x, kBytes = x.q_bytes.
template <int kHalves, int kRows, int kBytes>
void multiply_panel(const Panel& w, const PackedX& x, int64_t row, int64_t b, __m512 (*sums)[2]) {
  __m512 s[kRows][2];
  const int64_t q_stride = x.block_stride * kBlock * kBytes;
  const int8_t* q = x.q + row * q_stride + b * kBlock * kBytes;
  const float* scale = x.scale + row * x.block_stride + b;
  const float* sum = x.sum + row * 3 * x.block_stride + b;
  for (int r = 0; r < kRows; ++r)
    for (int g = 0; g < 2; ++g) s[r][g] = sums[r][g];
  for (int k = 0; k < 4; ++k) {
    __m512i dots[kRows][2];
    const auto start = [&] {
      for (int r = 0; r < kRows; ++r) dots[r][0] = dots[r][1] = _mm512_setzero_si512();
    };
    // Of the bytes at q; of 16 bits the high bytes come first.
    const auto add_bytes = [&](int part, const int8_t* bytes) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512i w0 = w.u[part][4 * i + k][0], w1 = w.u[part][4 * i + k][1];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          int32_t word;
          std::memcpy(&word, bytes + r * q_stride + part * 64 + (4 * i + k) * 4, 4);
          const __m512i values = _mm512_set1_epi32(word);
          dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], w0, values);
          dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], w1, values);
        }
      }
    };
    const auto add_parts = [&](int first, int last) {
      for (int part = first; part <= last; ++part) add_bytes(part, q);
      if constexpr (kBytes == 2) {
        for (int r = 0; r < kRows; ++r)
          for (int g = 0; g < 2; ++g) dots[r][g] = _mm512_slli_epi32(dots[r][g], 8);
        for (int part = first; part <= last; ++part) add_bytes(part, q + kHigh);
      }
    };
    const auto finish = [&](int half, int which_sum) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m512 factor = _mm512_set1_ps(scale[r * x.block_stride + k]);
        const __m512 all = _mm512_set1_ps(sum[(r * 3 + which_sum) * x.block_stride + k]);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          const __m512 product = _mm512_mul_ps(w.factor[2 * half][k][g], factor);
          s[r][g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][g]), product, s[r][g]);
          s[r][g] = _mm512_fmadd_ps(w.factor[2 * half + 1][k][g], all, s[r][g]);
        }
      }
    };
    start();
    if constexpr (kHalves == 1) {
      add_parts(0, 1);
      finish(0, 2);
    } else {
      add_parts(0, 0);
      finish(0, 0);
      start();
      add_parts(1, 1);
      finish(1, 1);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int g = 0; g < 2; ++g) sums[r][g] = s[r][g];
}

// More: 32 weight rows at a time, unpacked into lanes, so that every load of x serves them all.
template <class Format, int kBytes>
void many_rows(const DirectJob& job) {
  constexpr auto kMultiply = [] {
    constexpr int kHalves = Format::kHalves;
    return std::array{multiply_panel<kHalves, 1, kBytes>, multiply_panel<kHalves, 2, kBytes>,
                      multiply_panel<kHalves, 3, kBytes>, multiply_panel<kHalves, 4, kBytes>};
  }();
  constexpr int64_t kChunkBytes = bytes_of(Format::kType, kChunk * kBlock);
  const PackedX& x = *job.x;
  const int64_t blocks = x.cols / kBlock, row_bytes = job.w.row_bytes(), groups = (x.rows + 3) / 4;
  const auto* w = static_cast<const uint8_t*>(job.w.data) + job.first * row_bytes;
  PanelFactors factors;
  Panel panel;
  __m512 sums[kDirectRows][2];
  for (int64_t i0 = 0; i0 < job.count; i0 += kPanel, w += kPanel * row_bytes) {
    const int64_t count = std::min<int64_t>(kPanel, job.count - i0);
    const uint8_t* next_rows =
        i0 + kPanel < job.count ? w + kPanel * row_bytes : w + (job.next - job.first - i0) * row_bytes;
    for (int64_t r = 0; r < x.rows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b += kChunk) {
      const int n = static_cast<int>(std::min<int64_t>(kChunk, blocks - b));
      const uint8_t* p = w + b / kChunk * kChunkBytes;
      unpack_factors<Format>(p, row_bytes, count, n, &factors);
      for (int j = 0; 4 * j < n; ++j) {
        unpack_panel<Format>(p, row_bytes, count, j, n, factors, &panel);
        // Rows are read across, which no prefetcher of the processor foresees: the next 32 are fetched meanwhile, in
        // small portions, for a burst would hold up the loads at hand.
        constexpr int64_t kQuadBytes = kPanel * kChunkBytes / 4;
        const uint8_t* next = next_rows + (b / 4 + j) * kQuadBytes;
        for (int64_t at = 0; at < kQuadBytes; at += 64)
          _mm_prefetch(reinterpret_cast<const char*>(next + at), _MM_HINT_T1);
        for (int64_t g = 0; g < groups; ++g) {  // of 4 rows or nearly so
          const int64_t row = g * x.rows / groups, rows = (g + 1) * x.rows / groups - row;
          kMultiply[rows - 1](panel, x, row, b + 4 * j, &sums[row]);
        }
      }
    }
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int g = 0; g < 2; ++g) {
        const __mmask16 mask = mask16(std::max<int64_t>(count - 16 * g, 0));
        float* y = job.y + r * job.y_stride + i0 + 16 * g;
        if (job.accumulate) sums[r][g] = _mm512_add_ps(sums[r][g], _mm512_maskz_loadu_ps(mask, y));
        _mm512_mask_storeu_ps(y, mask, sums[r][g]);
      }
    }
  }
}

template <class Format>
void direct_quantized(const DirectJob& job) {
  switch (job.x->rows) {
    case 1:
      return few_rows<Format, 1>(job);
    case 2:
      return few_rows<Format, 2>(job);
    case 3:
      return few_rows<Format, 3>(job);
    case 4:
      return few_rows<Format, 4>(job);
    default:
      return job.x->q_bytes == 2 ? many_rows<Format, 2>(job) : many_rows<Format, 1>(job);
  }
}

// 4 weight rows by kRows rows of x.
template <class Format, int kRows>
INLINE void plain_block(const DirectJob& job, int64_t i0, int64_t count, int64_t row) {
  const PackedX& x = *job.x;
  const int64_t row_bytes = job.w.row_bytes(), element = info(job.w.type).block_bytes;
  const uint8_t* w[4];
  for (int i = 0; i < 4; ++i) {
    const int64_t at = job.first + i0 + std::min<int64_t>(i, count - 1);
    w[i] = static_cast<const uint8_t*>(job.w.data) + at * row_bytes;
  }
  __m512 sums[kRows][4] = {};
  const auto step = [&](int64_t k, int64_t n) {
    typename Format::Register v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[i] = Format::weights(w[i] + k * element, n);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sums[r][i] = Format::multiply(x, row + r, k, v[i], sums[r][i]);
    }
  };
  int64_t k = 0;
  for (; k + Format::kStep <= x.cols; k += Format::kStep) step(k, Format::kStep);
  if (k < x.cols) step(k, x.cols - k);
  write_group(job, row, kRows, i0, count, sums);
}

template <class Format>
void direct_plain(const DirectJob& job) {
  for (int64_t i = 0; i < job.count; i += 4) {
    const int64_t count = std::min<int64_t>(4, job.count - i);
    int64_t row = 0;
    for (; row + 4 <= job.x->rows; row += 4) plain_block<Format, 4>(job, i, count, row);
    for (; row + 2 <= job.x->rows; row += 2) plain_block<Format, 2>(job, i, count, row);
    for (; row < job.x->rows; ++row) plain_block<Format, 1>(job, i, count, row);
  }
}

// Many rows of bf16: a tile costs little more to fill than to read and loses nothing.
void tiles_bf16(const DirectJob& job) {
  for (int64_t i = 0; i < job.count; i += kAvx512TileFeatures) {
    tile_avx512({.x = job.x,
                 .first_row = 0,
                 .rows = job.x->rows,
                 .w = job.w,
                 .first = job.first + i,
                 .count = std::min(kAvx512TileFeatures, job.count - i),
                 .y = job.y + i,
                 .y_stride = job.y_stride,
                 .accumulate = job.accumulate,
                 .scratch = job.scratch});
  }
}

// Lane i: the largest lane of v[i].
INLINE __m128i max_each(const __m512i (&v)[4]) {
  __m256i h[4];
  for (int i = 0; i < 4; ++i) h[i] = _mm256_max_epi32(_mm512_castsi512_si256(v[i]), _mm512_extracti32x8_epi32(v[i], 1));
  const __m256i a = _mm256_max_epi32(_mm256_unpacklo_epi32(h[0], h[1]), _mm256_unpackhi_epi32(h[0], h[1]));
  const __m256i b = _mm256_max_epi32(_mm256_unpacklo_epi32(h[2], h[3]), _mm256_unpackhi_epi32(h[2], h[3]));
  const __m256i c = _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  return _mm_max_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
}

// Sums of the bytes of each block of half a quad.
INLINE __m128i sum_bytes(__m512i q) {
  const __m512i fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), q);
  const __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(fours), _mm512_extracti32x8_epi32(fours, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

template <int kBytes>
void quantize(const PackedX& x, int64_t row) {
  constexpr float kLargest = kBytes == 2 ? 127 * 256 + 127 : 127;
  const float* from = x.x + row * x.x_stride;
  float* scale = x.scale + row * x.block_stride;
  float* sum = x.sum + row * 3 * x.block_stride;
  int8_t* q = x.q + row * x.block_stride * kBlock * kBytes;
  for (int64_t b = 0; b < x.block_stride; b += 4) {
    __m512 v[4][2];
    __m512i top[4];
    for (int k = 0; k < 4; ++k) {
      for (int h = 0; h < 2; ++h) {
        const int64_t at = (b + k) * kBlock + 16 * h;
        v[k][h] = _mm512_maskz_loadu_ps(static_cast<__mmask16>(at < x.cols ? 0xffff : 0), from + at);
      }
      // As integers, so that a NaN is the largest and makes the whole block NaN.
      const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
      top[k] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(v[k][0]), magnitude),
                                _mm512_and_si512(_mm512_castps_si512(v[k][1]), magnitude));
    }
    const __m128 amax = _mm_castsi128_ps(max_each(top)), d = _mm_div_ps(amax, _mm_set1_ps(kLargest));
    alignas(16) float inverse[4];
    const __mmask8 some = _mm_cmp_ps_mask(amax, _mm_setzero_ps(), _CMP_GT_OQ);
    _mm_store_ps(inverse, _mm_maskz_div_ps(some, _mm_set1_ps(kLargest), amax));
    alignas(64) int8_t bytes[kBytes][128];  // low ones at 0
    for (int k = 0; k < 4; ++k) {
      for (int h = 0; h < 2; ++h) {
        const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(v[k][h], _mm512_set1_ps(inverse[k])));
        const auto store = [&](int i, __m512i value) {
          _mm_store_si128(reinterpret_cast<__m128i*>(bytes[i] + 32 * k + 16 * h), _mm512_cvtepi32_epi8(value));
        };
        store(0, n);
        if constexpr (kBytes == 2) store(1, _mm512_srai_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(128)), 8));
      }
    }
    __m128i sums[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    for (int i = kBytes - 1; i >= 0; --i) {
      const Quad arranged = arrange(_mm512_load_si512(bytes[i]), _mm512_load_si512(bytes[i] + 64));
      int8_t* to = q + b * kBlock * kBytes + (kBytes - 1 - i) * kHigh;
      _mm512_store_si512(to, arranged.first);
      _mm512_store_si512(to + 64, arranged.second);
      sums[0] = _mm_add_epi32(_mm_slli_epi32(sums[0], 8), sum_bytes(arranged.first));
      sums[1] = _mm_add_epi32(_mm_slli_epi32(sums[1], 8), sum_bytes(arranged.second));
    }
    const __m128 first = _mm_mul_ps(d, _mm_cvtepi32_ps(sums[0])), second = _mm_mul_ps(d, _mm_cvtepi32_ps(sums[1]));
    _mm_store_ps(scale + b, d);
    _mm_store_ps(sum + b, first);
    _mm_store_ps(sum + x.block_stride + b, second);
    _mm_store_ps(sum + 2 * x.block_stride + b, _mm_add_ps(first, second));
  }
}

void quantize_row(const PackedX& x, int64_t row) { return x.q_bytes == 2 ? quantize<2>(x, row) : quantize<1>(x, row); }

}  // namespace

void direct_avx512(const DirectJob& job) {
  switch (job.w.type) {
    case DType::kF32:
      return direct_plain<F32>(job);
    case DType::kF16:
      return direct_plain<F16>(job);
    case DType::kBF16:
      return job.x->rows > 8 ? tiles_bf16(job) : direct_plain<BF16>(job);
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
    case DType::kI64:
    case DType::kBool:
      return;  // refused by matmul_cpu
  }
}

const Level& avx512_level() {
  static constexpr Level kLevel{.quantize_row = quantize_row,
                                .round_row = round_row_avx512,
                                .direct = direct_avx512,
                                .tile = tile_avx512,
                                .tile_features = kAvx512TileFeatures,
                                .wide_rows = kWideRows};
  return kLevel;
}

}  // namespace oasis::kernels::matmul
