// The product behind matmul_cuda, for callers that keep their activations in bf16.
#pragma once

#include <cstdint>

#include "oasis/device/cuda/cuda_device.h"

namespace oasis::kernels {

// y [rows, n] (+)= x [rows, k] W^T by cuBLASLt; x and W [n, k] bf16, y fp32 with `y_stride` elements a row. k and n are
// multiples of 8.
void gemm_bf16(cuda::CudaStream& stream, const uint16_t* x, int64_t rows, int64_t k, const void* w, int64_t n, float* y,
               int64_t y_stride, bool accumulate);

// out [rows, cols] = x [rows, x_stride] as bf16; cols is a multiple of 4.
void round_rows(cuda::CudaStream& stream, const float* x, int64_t x_stride, int64_t rows, int64_t cols, uint16_t* out);

}  // namespace oasis::kernels
