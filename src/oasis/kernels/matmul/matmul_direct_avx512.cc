// Up to 64 rows: dot products with the weights as they lie.
#include <array>

#include "oasis/kernels/matmul/matmul_avx512.h"
#include "oasis/kernels/matmul/matmul_kernels.h"

namespace oasis::kernels::matmul {
namespace {

constexpr int kGroup = 16;  // weight rows whose lanes are added up together

// The sums of one weight row with one row of x: all lanes of both together.
struct Sums {
  __m512 products = _mm512_setzero_ps();
  __m128 minimums = _mm_setzero_ps();

  INLINE __m512 lanes() const { return _mm512_add_ps(products, _mm512_zextps128_ps512(minimums)); }
};

// Adds the product of a quad with blocks b .. b + 3 of row `row` of x.
template <int kHalves>
INLINE void add_product(const Quad& w, const PackedX& x, int64_t row, int64_t b, Sums* sums) {
  const int8_t* q = x.q + (row * x.block_stride + b) * kBlock;
  const float* sum = x.sum + row * 3 * x.block_stride + b;
  const __m512 scale = four_times(_mm_load_ps(x.scale + row * x.block_stride + b));
  const __m512i first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w.first, _mm512_load_si512(q));
  if constexpr (kHalves == 1) {
    const __m512i both = _mm512_dpbusd_epi32(first, w.second, _mm512_load_si512(q + 64));
    sums->products = _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), _mm512_mul_ps(w.d[0], scale), sums->products);
    sums->minimums = _mm_fmadd_ps(w.m[0], _mm_load_ps(sum + 2 * x.block_stride), sums->minimums);
  } else {
    const __m512i second = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w.second, _mm512_load_si512(q + 64));
    const __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(first), w.d[0]);
    sums->products = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_cvtepi32_ps(second), w.d[1], v), scale, sums->products);
    sums->minimums = _mm_fmadd_ps(w.m[0], _mm_load_ps(sum), sums->minimums);
    sums->minimums = _mm_fmadd_ps(w.m[1], _mm_load_ps(sum + x.block_stride), sums->minimums);
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

// Up to 4 rows of x: unpacked weights stay in registers.
template <class Format, int kRows>
void few_rows(const DirectJob& job) {
  constexpr int kBlocks = 4 * Format::kQuads;  // of a unit
  const PackedX& x = *job.x;
  const int64_t blocks = x.cols / kBlock, row_bytes = job.w.row_bytes(),
                unit_bytes = bytes_of(Format::kType, kBlocks * kBlock);
  const auto* w = static_cast<const uint8_t*>(job.w.data) + job.first * row_bytes;
  __m512 lanes[kRows][kGroup] = {};
  for (int64_t i0 = 0; i0 < job.count; i0 += kGroup) {
    const int64_t count = std::min<int64_t>(kGroup, job.count - i0);
    for (int64_t i = 0; i < count; ++i, w += row_bytes) {
      Sums sums[kRows];
      const auto add_unit = [&](const uint8_t* p, int64_t b, int n) {
        Quad q[Format::kQuads];
        Format::unit(p, n, q);
#pragma GCC unroll 2
        for (int j = 0; j < Format::kQuads; ++j)
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) add_product<Format::kHalves>(q[j], x, r, b + 4 * j, &sums[r]);
      };
      const uint8_t* p = w;
      int64_t b = 0;
      for (; b + kBlocks <= blocks; b += kBlocks, p += unit_bytes) add_unit(p, b, kBlocks);
      if (b < blocks) add_unit(p, b, static_cast<int>(blocks - b));
      for (int r = 0; r < kRows; ++r) lanes[r][i] = sums[r].lanes();
    }
    write_group(job, 0, kRows, i0, count, lanes);
  }
}

// A quad of 32 weight rows, a lane a row.
struct Panel {
  __m512i u[2][16][2];  // word 4 i + k of the first and of the second 16 values; then two times 16 rows
  __m512 d[2][4][2];    // of block k
  __m512 m[2][4][2];
};

// The unit at w of `count` rows (those up to 32 repeat the last).
template <class Format>
void unpack_panels(const uint8_t* w, int64_t row_bytes, int64_t count, int n, Panel* panels) {
  constexpr int kRows = 32;
  __m512i u[Format::kQuads][2][kRows];
  __m128 factors[Format::kQuads][2 * Format::kHalves][kRows];
  for (int64_t i = 0; i < kRows; ++i) {
    Quad q[Format::kQuads];
    Format::unit(w + std::min(i, count - 1) * row_bytes, n, q);
    for (int j = 0; j < Format::kQuads; ++j) {
      u[j][0][i] = q[j].first;
      u[j][1][i] = q[j].second;
      for (int h = 0; h < Format::kHalves; ++h) {
        factors[j][2 * h][i] = _mm512_castps512_ps128(q[j].d[h]);
        factors[j][2 * h + 1][i] = q[j].m[h];
      }
    }
  }
  for (int j = 0; j < Format::kQuads; ++j) {
    for (int part = 0; part < 2; ++part)
      for (int g = 0; g < 2; ++g) transpose_words(&u[j][part][16 * g], 64, &panels[j].u[part][0][g], 128);
    for (int f = 0; f < 2 * Format::kHalves; ++f) {
      auto* out = reinterpret_cast<float*>(f % 2 ? panels[j].m[f / 2] : panels[j].d[f / 2]);  // [block, row]
      for (int i = 0; i < kRows; i += 4) {
        __m128 a = factors[j][f][i], b = factors[j][f][i + 1], c = factors[j][f][i + 2], d = factors[j][f][i + 3];
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_store_ps(out + i, a);
        _mm_store_ps(out + kRows + i, b);
        _mm_store_ps(out + 2 * kRows + i, c);
        _mm_store_ps(out + 3 * kRows + i, d);
      }
    }
  }
}

// sums[kRows][2] += products of a panel with blocks b .. b + 3 of rows `row` .. of x.
template <int kHalves, int kRows>
void multiply_panel(const Panel& w, const PackedX& x, int64_t row, int64_t b, __m512 (*sums)[2]) {
  __m512 s[kRows][2];
  const int8_t* q = x.q + (row * x.block_stride + b) * kBlock;
  const float* scale = x.scale + row * x.block_stride + b;
  const float* sum = x.sum + row * 3 * x.block_stride + b;
  for (int r = 0; r < kRows; ++r)
    for (int g = 0; g < 2; ++g) s[r][g] = sums[r][g];
  for (int k = 0; k < 4; ++k) {
    __m512i dots[kRows][2];
    const auto start = [&] {
      for (int r = 0; r < kRows; ++r) dots[r][0] = dots[r][1] = _mm512_setzero_si512();
    };
    const auto add_part = [&](int part) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512i w0 = w.u[part][4 * i + k][0], w1 = w.u[part][4 * i + k][1];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          int32_t word;
          std::memcpy(&word, q + r * x.block_stride * kBlock + part * 64 + (4 * i + k) * 4, 4);
          const __m512i values = _mm512_set1_epi32(word);
          dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], w0, values);
          dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], w1, values);
        }
      }
    };
    const auto finish = [&](int half, int which_sum) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m512 factor = _mm512_set1_ps(scale[r * x.block_stride + k]);
        const __m512 all = _mm512_set1_ps(sum[(r * 3 + which_sum) * x.block_stride + k]);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          const __m512 product = _mm512_mul_ps(w.d[half][k][g], factor);
          s[r][g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][g]), product, s[r][g]);
          s[r][g] = _mm512_fmadd_ps(w.m[half][k][g], all, s[r][g]);
        }
      }
    };
    start();
    add_part(0);
    if constexpr (kHalves == 2) {
      finish(0, 0);
      start();
    }
    add_part(1);
    finish(kHalves - 1, kHalves == 2 ? 1 : 2);
  }
  for (int r = 0; r < kRows; ++r)
    for (int g = 0; g < 2; ++g) sums[r][g] = s[r][g];
}

// More: 32 weight rows at a time, unpacked into lanes, so that every load of x serves them all.
template <class Format>
void many_rows(const DirectJob& job) {
  constexpr int kBlocks = 4 * Format::kQuads;
  constexpr auto kMultiply = [] {
    constexpr int kHalves = Format::kHalves;
    return std::array{multiply_panel<kHalves, 1>, multiply_panel<kHalves, 2>, multiply_panel<kHalves, 3>,
                      multiply_panel<kHalves, 4>};
  }();
  const PackedX& x = *job.x;
  const int64_t blocks = x.cols / kBlock, row_bytes = job.w.row_bytes(), groups = (x.rows + 3) / 4;
  const auto* w = static_cast<const uint8_t*>(job.w.data) + job.first * row_bytes;
  Panel panels[Format::kQuads];
  __m512 sums[kDirectRows][2];
  for (int64_t i0 = 0; i0 < job.count; i0 += 32, w += 32 * row_bytes) {
    const int64_t count = std::min<int64_t>(32, job.count - i0);
    for (int64_t r = 0; r < x.rows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b += kBlocks) {
      const int n = static_cast<int>(std::min<int64_t>(kBlocks, blocks - b));
      // Rows are read across, which no prefetcher of the processor foresees: the next 32 are fetched meanwhile.
      const uint8_t* next = w + 32 * (row_bytes + bytes_of(Format::kType, b * kBlock));
      for (int64_t at = 0; at < 32 * bytes_of(Format::kType, kBlocks * kBlock); at += 64)
        _mm_prefetch(reinterpret_cast<const char*>(next + at), _MM_HINT_T1);
      unpack_panels<Format>(w + bytes_of(Format::kType, b * kBlock), row_bytes, count, n, panels);
      for (int j = 0; j < Format::kQuads; ++j) {
        for (int64_t g = 0; g < groups; ++g) {  // of 4 rows or nearly so
          const int64_t row = g * x.rows / groups, rows = (g + 1) * x.rows / groups - row;
          kMultiply[rows - 1](panels[j], x, row, b + 4 * j, &sums[row]);
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
      return many_rows<Format>(job);
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

void quantize_row(const PackedX& x, int64_t row) {
  const float* from = x.x + row * x.x_stride;
  const int64_t blocks = x.cols / kBlock;
  float* scale = x.scale + row * x.block_stride;
  float* sum = x.sum + row * 3 * x.block_stride;
  int8_t* q = x.q + row * x.block_stride * kBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    const __m512 a = _mm512_loadu_ps(from + b * 32), c = _mm512_loadu_ps(from + b * 32 + 16);
    // As integers, so that a NaN is the largest and makes the whole block NaN.
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i top = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                         _mm512_and_si512(_mm512_castps_si512(c), magnitude));
    const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(top))));
    const float d = amax / 127.f;
    const __m512 inverse = _mm512_set1_ps(amax > 0 ? 127.f / amax : 0.f);
    const __m512i qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
    const __m512i qc = _mm512_cvtps_epi32(_mm512_mul_ps(c, inverse));
    _mm_store_si128(reinterpret_cast<__m128i*>(q + b * 32), _mm512_cvtsepi32_epi8(qa));
    _mm_store_si128(reinterpret_cast<__m128i*>(q + b * 32 + 16), _mm512_cvtsepi32_epi8(qc));
    scale[b] = d;
    const int first = _mm512_reduce_add_epi32(qa), second = _mm512_reduce_add_epi32(qc);
    sum[b] = d * static_cast<float>(first);
    sum[x.block_stride + b] = d * static_cast<float>(second);
    sum[2 * x.block_stride + b] = d * static_cast<float>(first + second);
  }
  const int64_t padding = x.block_stride - blocks;
  std::fill_n(q + blocks * kBlock, padding * kBlock, int8_t{0});
  std::fill_n(scale + blocks, padding, 0.f);
  for (int i = 0; i < 3; ++i) std::fill_n(sum + i * x.block_stride + blocks, padding, 0.f);
  for (int64_t b = 0; b < blocks; b += 4) {
    Quad v;
    arrange(_mm512_load_si512(q + b * kBlock), _mm512_load_si512(q + b * kBlock + 64), &v);
    _mm512_store_si512(q + b * kBlock, v.first);
    _mm512_store_si512(q + b * kBlock + 64, v.second);
  }
}

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
                                .tile_features = kAvx512TileFeatures};
  return kLevel;
}

}  // namespace oasis::kernels::matmul
