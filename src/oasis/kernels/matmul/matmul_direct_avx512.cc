// Up to 64 rows: dot products with the weights as they lie.
#include "oasis/kernels/matmul/matmul_avx512.h"
#include "oasis/kernels/matmul/matmul_kernels.h"

namespace oasis::kernels::matmul {
namespace {

constexpr int kGroup = 16;  // weight rows whose lanes are added up together

// Weights that were unpacked before, for more rows of x than registers hold.
struct Unpacked {
  static constexpr int64_t kBytes = kChunk * kBlock;
  INLINE static Quad quad(const uint8_t* p, int q, int) {
    return {_mm512_load_si512(p + 128 * q), _mm512_load_si512(p + 128 * q + 64)};
  }
};

INLINE __m512 four_factors(const float* p) { return _mm512_broadcast_f32x4(_mm_load_ps(p)); }

// sums[r] += the products of the n blocks at p with blocks b0 .. b0 + n of row `row + r` of x.
template <class Format, int kHalves, int kRows>
INLINE void multiply_chunk(const uint8_t* p, int n, const Factors& f, const PackedX& x, int64_t row, int64_t b0,
                           __m512 (&sums)[kRows]) {
  alignas(64) float factors[kRows][kHalves][kChunk];
  const int8_t* q[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const float* scale = x.scale + (row + r) * x.block_stride + b0;
    const float* sum = x.sum + (row + r) * 2 * x.block_stride + b0;
    q[r] = x.q + ((row + r) * x.block_stride + b0) * kBlock;
    for (int b = 0; b < n; b += 16) {
      const __m512 s = _mm512_load_ps(scale + b);
      const __m512 first = _mm512_load_ps(sum + b), second = _mm512_load_ps(sum + x.block_stride + b);
      for (int h = 0; h < kHalves; ++h)
        _mm512_store_ps(&factors[r][h][b], _mm512_mul_ps(s, _mm512_load_ps(f.d[h] + b)));
      if constexpr (kHalves == 1) {
        sums[r] = _mm512_fmadd_ps(_mm512_load_ps(f.m[0] + b), _mm512_add_ps(first, second), sums[r]);
      } else {
        sums[r] = _mm512_fmadd_ps(_mm512_load_ps(f.m[0] + b), first, sums[r]);
        sums[r] = _mm512_fmadd_ps(_mm512_load_ps(f.m[1] + b), second, sums[r]);
      }
    }
  }
  const auto add_quad = [&](int quad, const Quad& w) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512i x0 = _mm512_load_si512(q[r] + 128 * quad), x1 = _mm512_load_si512(q[r] + 128 * quad + 64);
      const __m512i first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w.first, x0);
      if constexpr (kHalves == 1) {
        const __m512i both = _mm512_dpbusd_epi32(first, w.second, x1);
        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), four_factors(&factors[r][0][4 * quad]), sums[r]);
      } else {
        const __m512i second = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w.second, x1);
        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), four_factors(&factors[r][0][4 * quad]), sums[r]);
        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(second), four_factors(&factors[r][1][4 * quad]), sums[r]);
      }
    }
  };
  int quad = 0;
  for (; quad < n / 4; ++quad) add_quad(quad, Format::quad(p, quad, 4 * quad + 4));
  if (n % 4) add_quad(quad, Format::quad(p, quad, n));
}

// Lane i: the sum of the lanes of v[i], i < 4.
INLINE __m128 sum_each(const __m512* v) {
  __m256 h[4];
  for (int i = 0; i < 4; ++i) h[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i]), _mm512_extractf32x8_ps(v[i], 1));
  const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(h[0], h[1]), _mm256_hadd_ps(h[2], h[3]));
  return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

// Sums of a group of weight rows, [row of x, weight row] -> y.
template <class Sums>
INLINE void write_group(const DirectJob& job, int64_t row, int64_t rows, int64_t i0, int64_t count, const Sums& sums) {
  for (int64_t r = 0; r < rows; ++r) {
    float* y = job.y + (row + r) * job.y_stride + i0;
    for (int64_t i = 0; i < count; i += 4) {
      const auto mask = static_cast<__mmask8>((1u << std::min<int64_t>(count - i, 4)) - 1);
      __m128 s = sum_each(&sums[r][i]);
      if (job.accumulate) s = _mm_add_ps(s, _mm_maskz_loadu_ps(mask, y + i));
      _mm_mask_storeu_ps(y + i, mask, s);
    }
  }
}

// Up to 4 rows of x: unpacked weights stay in registers.
template <class Format, int kRows>
void few_rows(const DirectJob& job) {
  const PackedX& x = *job.x;
  const int64_t blocks = x.cols / kBlock, row_bytes = job.w.row_bytes();
  const auto* w = static_cast<const uint8_t*>(job.w.data) + job.first * row_bytes;
  Factors f;
  for (int64_t i0 = 0; i0 < job.count; i0 += kGroup) {
    const int64_t count = std::min<int64_t>(kGroup, job.count - i0);
    __m512 group[kRows][kGroup];
    for (int64_t i = 0; i < count; ++i, w += row_bytes) {
      __m512 sums[kRows] = {};
      for (int64_t b = 0; b < blocks; b += kChunk) {
        const int n = static_cast<int>(std::min<int64_t>(kChunk, blocks - b));
        const uint8_t* p = w + bytes_of(job.w.type, b * kBlock);
        Format::factors(p, n, f);
        multiply_chunk<Format, Format::kHalves, kRows>(p, n, f, x, 0, b, sums);
      }
      for (int r = 0; r < kRows; ++r) group[r][i] = sums[r];
    }
    for (int r = 0; r < kRows; ++r) std::fill(&group[r][count], &group[r][(count + 3) / 4 * 4], __m512{});
    write_group(job, 0, kRows, i0, count, group);
  }
}

// More: a chunk of a weight row is unpacked into L1 and multiplied by 4 rows at a time.
template <class Format>
void many_rows(const DirectJob& job) {
  const PackedX& x = *job.x;
  const int64_t blocks = x.cols / kBlock, row_bytes = job.w.row_bytes();
  const auto* w = static_cast<const uint8_t*>(job.w.data) + job.first * row_bytes;
  Factors f;
  alignas(64) uint8_t unpacked[Unpacked::kBytes];
  __m512 sums[kDirectRows + 3][4];
  for (int64_t i0 = 0; i0 < job.count; i0 += 4) {
    const int64_t count = std::min<int64_t>(4, job.count - i0);
    std::fill(&sums[0][0], &sums[x.rows][0], __m512{});
    for (int64_t i = 0; i < count; ++i, w += row_bytes) {
      for (int64_t b = 0; b < blocks; b += kChunk) {
        const int n = static_cast<int>(std::min<int64_t>(kChunk, blocks - b)), padded = (n + 3) / 4 * 4;
        const uint8_t* p = w + bytes_of(job.w.type, b * kBlock);
        Format::factors(p, n, f);
        for (int quad = 0; quad < padded / 4; ++quad) {
          const Quad v = Format::quad(p, quad, n);
          _mm512_store_si512(unpacked + 128 * quad, v.first);
          _mm512_store_si512(unpacked + 128 * quad + 64, v.second);
        }
        const auto rows = [&]<int kRows>(int64_t row) {
          __m512 s[kRows];
          for (int r = 0; r < kRows; ++r) s[r] = sums[row + r][i];
          multiply_chunk<Unpacked, Format::kHalves, kRows>(unpacked, padded, f, x, row, b, s);
          for (int r = 0; r < kRows; ++r) sums[row + r][i] = s[r];
        };
        int64_t row = 0;
        for (; row + 4 <= x.rows; row += 4) rows.template operator()<4>(row);
        for (; row < x.rows; ++row) rows.template operator()<1>(row);
      }
    }
    write_group(job, 0, x.rows, i0, count, sums);
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

void direct(const DirectJob& job) {
  switch (job.w.type) {
    case DType::kF32:
      return direct_plain<F32>(job);
    case DType::kF16:
      return direct_plain<F16>(job);
    case DType::kBF16:
      return direct_plain<BF16>(job);
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

void quantize_row(const PackedX& x, int64_t row) {
  const float* from = x.x + row * x.x_stride;
  const int64_t blocks = x.cols / kBlock;
  float* scale = x.scale + row * x.block_stride;
  float* sum = x.sum + row * 2 * x.block_stride;
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
    sum[b] = d * static_cast<float>(_mm512_reduce_add_epi32(qa));
    sum[x.block_stride + b] = d * static_cast<float>(_mm512_reduce_add_epi32(qc));
  }
  std::memset(q + blocks * 32, 0, static_cast<size_t>(x.block_stride - blocks) * 32);
  std::fill(scale + blocks, scale + x.block_stride, 0.f);
  std::fill(sum + blocks, sum + x.block_stride, 0.f);
  std::fill(sum + x.block_stride + blocks, sum + 2 * x.block_stride, 0.f);
  for (int64_t b = 0; b < blocks; b += 4) {
    const Quad v = arrange(_mm512_load_si512(q + b * 32), _mm512_load_si512(q + b * 32 + 64));
    _mm512_store_si512(q + b * 32, v.first);
    _mm512_store_si512(q + b * 32 + 64, v.second);
  }
}

}  // namespace

const Level& avx512_level() {
  static constexpr Level kLevel{.quantize_row = quantize_row,
                                .round_row = round_row_avx512,
                                .direct = direct,
                                .tile = tile_avx512,
                                .tile_features = kAvx512TileFeatures};
  return kLevel;
}

}  // namespace oasis::kernels::matmul
