// More than 64 rows: a tile of weights is unpacked to bf16 and multiplied by 14 rows at a time (vdpbf16ps).
#include "oasis/kernels/matmul/matmul_avx512.h"
#include "oasis/kernels/matmul/matmul_kernels.h"

namespace oasis::kernels::matmul {
namespace {

// Unpacks columns [k0, k0 + depth) of a weight row to bf16. Writes zeros up to a multiple of 32.
template <class Format>
void unpack_row(const uint8_t* p, int64_t depth, bf16* out) {
  const __m512i natural = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i two_on = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
  const int64_t blocks = depth / kBlock;
  for (int64_t b = 0; b < blocks; b += kChunk, p += bytes_of(Format::kType, kChunk * kBlock)) {
    const int n = static_cast<int>(std::min<int64_t>(kChunk, blocks - b));
    const Factors factors = Format::factors(p, n);
    alignas(64) float d[2][kChunk], m[2][kChunk];
    for (int h = 0; h < Format::kHalves; ++h) {
      _mm512_store_ps(d[h], factors.d[h]);
      _mm512_store_ps(m[h], factors.m[h]);
    }
    for (int j = 0; 4 * j < n; ++j) {
      const Quad v = Format::quad(p, j, n);
      alignas(64) uint8_t u[128];
      _mm512_store_si512(u, _mm512_permutex2var_epi32(v.first, natural, v.second));
      _mm512_store_si512(u + 64, _mm512_permutex2var_epi32(v.first, two_on, v.second));
      for (int k = 4 * j; k < std::min(4 * j + 4, n); ++k) {
        const auto half = [&](int h) {
          const auto* bytes = reinterpret_cast<const __m128i*>(u + 32 * (k % 4) + 16 * h);
          const __m512 value = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(bytes)));
          const int factor = Format::kHalves == 2 ? h : 0;
          return _mm512_fmadd_ps(value, _mm512_set1_ps(d[factor][k]), _mm512_set1_ps(m[factor][k]));
        };
        _mm512_store_si512(out + (b + k) * kBlock, (__m512i)_mm512_cvtne2ps_pbh(half(1), half(0)));
      }
    }
  }
}

template <>
void unpack_row<F16>(const uint8_t* p, int64_t depth, bf16* out) {
  for (int64_t k = 0; k < depth; k += 32) {
    const __m512 low = F16::weights(p + 2 * k, depth - k),
                 high = F16::weights(p + 2 * k + 32, std::max<int64_t>(depth - k - 16, 0));
    _mm512_store_si512(out + k, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
}
template <>
void unpack_row<BF16>(const uint8_t* p, int64_t depth, bf16* out) {
  for (int64_t k = 0; k < depth; k += 32) _mm512_store_si512(out + k, (__m512i)BF16::weights(p + 2 * k, depth - k));
}

auto unpacker(DType type) {
  switch (type) {
    case DType::kF16:
      return unpack_row<F16>;
    case DType::kQ4_0:
      return unpack_row<Q4_0>;
    case DType::kQ4_1:
      return unpack_row<Q4_1>;
    case DType::kQ8_0:
      return unpack_row<Q8_0>;
    case DType::kQ4_K:
      return unpack_row<Q4_K>;
    case DType::kQ5_K:
      return unpack_row<Q5_K>;
    case DType::kQ6_K:
      return unpack_row<Q6_K>;
    default:
      return unpack_row<BF16>;
  }
}

constexpr int kPanel = 32;      // features of a panel, two registers
constexpr int kBlockRows = 14;  // rows of x: 28 sums, two registers of weights, one of x

// y[kRows, 32 features] (+)= x[kRows, depth] . panel[depth / 2][32 features][2].
template <int kRows>
void panel_block(const bf16* x, int64_t x_stride, const std::byte* panel, int64_t depth, float* y, int64_t y_stride,
                 int64_t features, bool accumulate) {
  __m512 sums[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (int64_t k = 0; k < depth; k += 2, panel += 128) {
    const auto w0 = (__m512bh)_mm512_load_si512(panel), w1 = (__m512bh)_mm512_load_si512(panel + 64);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * x_stride + k, 4);
      const auto a = (__m512bh)_mm512_set1_epi32(pair);
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], a, w0);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], a, w1);
    }
  }
  const __mmask16 mask0 = mask16(features), mask1 = mask16(std::max<int64_t>(features - 16, 0));
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r, y += y_stride) {
    if (accumulate) {
      sums[r][0] = _mm512_add_ps(sums[r][0], _mm512_maskz_loadu_ps(mask0, y));
      sums[r][1] = _mm512_add_ps(sums[r][1], _mm512_maskz_loadu_ps(mask1, y + 16));
    }
    _mm512_mask_storeu_ps(y, mask0, sums[r][0]);
    _mm512_mask_storeu_ps(y + 16, mask1, sums[r][1]);
  }
}

using PanelBlock = void (*)(const bf16*, int64_t, const std::byte*, int64_t, float*, int64_t, int64_t, bool);
constexpr PanelBlock kPanelBlocks[kBlockRows + 1] = {nullptr,         panel_block<1>,  panel_block<2>,  panel_block<3>,
                                                     panel_block<4>,  panel_block<5>,  panel_block<6>,  panel_block<7>,
                                                     panel_block<8>,  panel_block<9>,  panel_block<10>, panel_block<11>,
                                                     panel_block<12>, panel_block<13>, panel_block<14>};

// Panels of [depth / 2][32 features][2 columns] from `count` weight rows.
void fill_panels(const TileJob& job, int64_t k0, int64_t depth, std::byte* panels, bf16* rows) {
  const auto unpack = unpacker(job.w.type);
  const int64_t row_bytes = job.w.row_bytes(), padded = (depth + 31) / 32 * 32;
  const int64_t stride = padded + 32;  // rows at a multiple of 4,096 bytes would share their cache sets
  const auto* w = static_cast<const uint8_t*>(job.w.data) + job.first * row_bytes + bytes_of(job.w.type, k0);
  for (int64_t i0 = 0; i0 < (job.count + kPanel - 1) / kPanel * kPanel; i0 += 16) {
    for (int64_t i = 0; i < 16; ++i) {
      if (i0 + i < job.count) {
        unpack(w + (i0 + i) * row_bytes, depth, rows + i * stride);
      } else {
        std::fill_n(rows + i * stride, padded, bf16{});
      }
    }
    std::byte* out = panels + i0 / kPanel * padded * kPanel * 2 + i0 % kPanel * 4;
    for (int64_t k = 0; k < padded; k += 32)
      transpose_words(reinterpret_cast<std::byte*>(rows + k), stride * 2, out + k / 2 * 128, 128);
  }
}

// Weights in fp32 (routers, mostly) stay fp32: products of a few rows at a time, so that these stay in L2.
void tile_f32(const TileJob& job) {
  constexpr int64_t kRows = 32;
  for (int64_t row = job.first_row; row < job.first_row + job.rows; row += kRows) {
    PackedX x = *job.x;
    x.x += row * x.x_stride;
    x.rows = std::min(kRows, job.first_row + job.rows - row);
    direct_avx512({.x = &x,
                   .w = job.w,
                   .first = job.first,
                   .count = job.count,
                   .y = job.y + row * job.y_stride,
                   .y_stride = job.y_stride,
                   .accumulate = job.accumulate,
                   .scratch = job.scratch,
                   .next = job.first});
  }
}

}  // namespace

void tile_avx512(const TileJob& job) {
  if (job.w.type == DType::kF32) return tile_f32(job);
  static_assert(kAvx512TileFeatures * kTileDepth * 2 + 16 * (kTileDepth + 32) * 2 <= kTileScratchBytes);
  const PackedX& x = *job.x;
  std::byte* panels = job.scratch;
  auto* rows = reinterpret_cast<bf16*>(job.scratch + kAvx512TileFeatures * kTileDepth * 2);
  for (int64_t k0 = 0; k0 < x.cols; k0 += kTileDepth) {
    const int64_t depth = std::min(kTileDepth, x.cols - k0), padded = (depth + 31) / 32 * 32;
    fill_panels(job, k0, depth, panels, rows);
    const bool accumulate = job.accumulate || k0 > 0;
    for (int64_t row = 0; row < job.rows; row += kBlockRows) {
      const int64_t n = std::min<int64_t>(kBlockRows, job.rows - row);
      for (int64_t i = 0; i < job.count; i += kPanel) {
        kPanelBlocks[n](x.bits + (job.first_row + row) * x.bits_stride + k0, x.bits_stride, panels + i * padded * 2,
                        padded, job.y + (job.first_row + row) * job.y_stride + i, job.y_stride,
                        std::min<int64_t>(kPanel, job.count - i), accumulate);
      }
    }
  }
}

void round_row_avx512(const PackedX& x, int64_t row) {
  const float* from = x.x + row * x.x_stride;
  bf16* to = x.bits + row * x.bits_stride;
  for (int64_t k = 0; k < x.bits_stride; k += 16) {
    const __m512 v = _mm512_maskz_loadu_ps(mask16(std::max<int64_t>(x.cols - k, 0)), from + k);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k), (__m256i)_mm512_cvtneps_pbh(v));
  }
}

}  // namespace oasis::kernels::matmul
