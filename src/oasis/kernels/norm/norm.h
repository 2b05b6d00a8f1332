#pragma once

#include <cstdint>

#include "oasis/device/device.h"

namespace oasis::kernels {

// y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. With cols = head_dim and rows = tokens * heads it is Qwen3's q/k
// norm. x and y may be the same memory.
struct RmsNormParams {
  const float* x = nullptr;       // [rows, x_stride]
  int64_t x_stride = 0;           // elements
  const float* weight = nullptr;  // [cols]
  float eps = 0;
  float* y = nullptr;    // [rows, y_stride]
  int64_t y_stride = 0;  // elements
  int64_t rows = 0;
  int64_t cols = 0;
};

void rms_norm_cpu(Stream& stream, const RmsNormParams& params);
void rms_norm_cuda(Stream& stream, const RmsNormParams& params);

}  // namespace oasis::kernels
