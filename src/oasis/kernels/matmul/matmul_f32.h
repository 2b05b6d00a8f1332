// The fp32 kernels, for instruction sets without bf16 products: included by files compiled for different ones, so
// everything has internal linkage (see vec8.h).
#pragma once

#include <algorithm>

#include "oasis/kernels/matmul/matmul.h"
#include "oasis/kernels/matmul/matmul_kernels.h"
#include "oasis/kernels/vec8.h"

#if defined(__FMA__)
#include <immintrin.h>
#endif

namespace oasis::kernels::matmul {
namespace {

[[gnu::always_inline]] inline F8 multiply_add(F8 a, F8 b, F8 c) {
#if defined(__FMA__)
  return (F8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// Direct products by way of fp32: a stretch of a weight row is unpacked once for all rows of x.
void direct_f32(const DirectJob& job) {
  constexpr int64_t kStretch = 1024;
  const PackedX& x = *job.x;
  const auto* weights = static_cast<const std::byte*>(job.w.data);
  alignas(64) float w[kStretch];
  F8 sums[kDirectRows][2];
  for (int64_t i = 0; i < job.count; ++i) {
    std::fill_n(&sums[0][0], 2 * x.rows, F8{});
    for (int64_t k0 = 0; k0 < x.cols; k0 += kStretch) {
      const int64_t n = std::min(kStretch, x.cols - k0), padded = (n + 15) / 16 * 16;
      dequantize(job.w.type, weights + (job.first + i) * job.w.row_bytes() + bytes_of(job.w.type, k0), n, w);
      std::fill(w + n, w + padded, 0.f);
      for (int64_t row = 0; row < x.rows; ++row) {
        const float* xs = x.x + row * x.x_stride + k0;
        F8 a = sums[row][0], b = sums[row][1];
        int64_t k = 0;
        for (; k + 16 <= n; k += 16) {
          a = multiply_add(load8(w + k), load8(xs + k), a);
          b = multiply_add(load8(w + k + 8), load8(xs + k + 8), b);
        }
        if (k < n) {
          float tail[16] = {};
          std::copy(xs + k, xs + n, tail);
          a = multiply_add(load8(w + k), load8(tail), a);
          b = multiply_add(load8(w + k + 8), load8(tail + 8), b);
        }
        sums[row][0] = a;
        sums[row][1] = b;
      }
    }
    for (int64_t row = 0; row < x.rows; ++row) {
      float& y = job.y[row * job.y_stride + i];
      y = (job.accumulate ? y : 0.f) + sum8(sums[row][0] + sums[row][1]);
    }
  }
}

// y[kRows, features] (+)= x[kRows, depth] . panel[depth, 8 * kVecs].
template <int kRows, int kVecs>
void tile_block(const float* x, int64_t x_stride, const float* panel, int64_t depth, float* y, int64_t y_stride,
                int64_t features, bool accumulate) {
  F8 sum[kRows][kVecs] = {};
  for (int64_t k = 0; k < depth; ++k, panel += 8 * kVecs) {
    F8 w[kVecs];
    for (int v = 0; v < kVecs; ++v) w[v] = load8(panel + 8 * v);
    for (int r = 0; r < kRows; ++r) {
      const F8 a = splat8(x[r * x_stride + k]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] = multiply_add(a, w[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float out[8 * kVecs];
    for (int v = 0; v < kVecs; ++v) store8(out + 8 * v, sum[r][v]);
    for (int64_t i = 0; i < features; ++i) {
      float& to = y[r * y_stride + i];
      to = (accumulate ? to : 0.f) + out[i];
    }
  }
}

// A tile through fp32 panels [panel][depth][8 * kVecs features].
template <int kRows, int kVecs>
void tile_f32(const TileJob& job) {
  constexpr int64_t kPanel = 8 * kVecs;
  const PackedX& x = *job.x;
  const auto* weights = static_cast<const std::byte*>(job.w.data);
  auto* panels = reinterpret_cast<float*>(job.scratch);
  for (int64_t k0 = 0; k0 < x.cols; k0 += kTileDepth) {
    const int64_t depth = std::min(kTileDepth, x.cols - k0);
    for (int64_t i = 0; i < (job.count + kPanel - 1) / kPanel * kPanel; ++i) {
      alignas(64) float w[kTileDepth];
      if (i < job.count) {
        dequantize(job.w.type, weights + (job.first + i) * job.w.row_bytes() + bytes_of(job.w.type, k0), depth, w);
      } else {
        std::fill(w, w + depth, 0.f);
      }
      float* out = panels + i / kPanel * kPanel * depth + i % kPanel;
      for (int64_t k = 0; k < depth; ++k) out[k * kPanel] = w[k];
    }
    const bool accumulate = job.accumulate || k0 > 0;
    for (int64_t row = 0; row < job.rows;) {
      const float* xs = x.x + (job.first_row + row) * x.x_stride + k0;
      const bool full = row + kRows <= job.rows;
      for (int64_t i = 0; i < job.count; i += kPanel) {
        float* y = job.y + (job.first_row + row) * job.y_stride + i;
        const int64_t features = std::min(kPanel, job.count - i);
        (full ? tile_block<kRows, kVecs> : tile_block<1, kVecs>)(xs, x.x_stride, panels + i * depth, depth, y,
                                                                 job.y_stride, features, accumulate);
      }
      row += full ? kRows : 1;
    }
  }
}

}  // namespace
}  // namespace oasis::kernels::matmul
