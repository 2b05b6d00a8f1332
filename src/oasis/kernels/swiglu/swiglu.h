#pragma once

#include <cstdint>

#include "oasis/device/device.h"

namespace oasis::kernels {

// y = silu(gate) * up, element by element; y may be gate or up.
struct SwigluParams {
  const float* gate = nullptr;  // [count]
  const float* up = nullptr;    // [count]
  float* y = nullptr;           // [count]
  int64_t count = 0;
};

void swiglu_cpu(Stream& stream, const SwigluParams& params);
void swiglu_cuda(Stream& stream, const SwigluParams& params);

}  // namespace oasis::kernels
