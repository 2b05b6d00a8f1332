// The product behind matmul_cuda, for callers that keep their activations in bf16.
#pragma once

#include <cstdint>

#include "oasis/device/cuda/cuda_device.h"

namespace oasis::kernels {

// y [rows, n] (+)= x [rows, k] W^T by cuBLASLt; x and W [n, k] bf16, y fp32 with `y_stride` elements a row. k and n are
// multiples of 8.
void gemm_bf16(cuda::CudaStream& stream, const uint16_t* x, int64_t rows, int64_t k, const void* w, int64_t n, float* y,
               int64_t y_stride, bool accumulate);

// The same for so few rows that reading W is all: what stands before and after the product is part of it.
constexpr int kFewRows = 8;
constexpr int64_t kMostNormed = 12288;  // columns of rows that are normed: they lie in shared memory
inline bool takes_few_rows(int64_t rows, int64_t k, int64_t n) {
  return rows >= 1 && rows <= kFewRows && k % 32 == 0 && n % 16 == 0;
}
struct FewRowsParams {
  int32_t rows = 0;  // takes_few_rows(rows, k, n); where gated, of n / 2
  int64_t k = 0, n = 0;
  const void* w = nullptr;  // [n, k] bf16
  // One of the two; rows start at multiples of 16 bytes. fp32 is rounded to bf16 on its way.
  const float* x = nullptr;
  const uint16_t* x_bf16 = nullptr;
  int64_t x_stride = 0;         // elements
  const float* norm = nullptr;  // [k]: x is RMS-normed with this weight first (x fp32, k <= kMostNormed)
  float eps = 0;
  int32_t per_item = 1, item_rows = 1;  // with norm: row r is x's row r / per_item * item_rows + r % per_item
  // One of the two: y [rows, y_stride] (+)= the product; or, with norm, the first half of its columns gates the second:
  // gated [rows, n / 2] = silu(first) * second as bf16.
  float* y = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;  // without norm
  uint16_t* gated = nullptr;
};
void gemm_few_rows(cuda::CudaStream& stream, const FewRowsParams& params);

// out [rows, cols] = x [rows, x_stride] as bf16; cols is a multiple of 4.
void round_rows(cuda::CudaStream& stream, const float* x, int64_t x_stride, int64_t rows, int64_t cols, uint16_t* out);

}  // namespace oasis::kernels
