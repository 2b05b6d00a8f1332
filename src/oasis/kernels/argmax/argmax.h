#pragma once

#include <cstdint>

#include "oasis/device/device.h"

namespace oasis::kernels {

// best[r] = the lowest index of the largest of x[r]; -1 where none is a number.
struct ArgmaxParams {
  const float* x = nullptr;  // [rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;
  int32_t* best = nullptr;  // [rows]
};

void argmax_cpu(Stream& stream, const ArgmaxParams& params);
void argmax_cuda(Stream& stream, const ArgmaxParams& params);

}  // namespace oasis::kernels
