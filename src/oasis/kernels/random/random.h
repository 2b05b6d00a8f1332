// Random bf16 numbers for weights and caches that no file holds.
#pragma once

#include <cstdint>

#include "oasis/base/numeric.h"
#include "oasis/device/device.h"

namespace oasis::kernels {

// out[i] = half_width * u, u uniform in [-1, 1) from SplitMix64's number `first + i` of the stream that starts at
// `seed`: the same numbers on every device, in whatever pieces they are made.
struct FillRandomParams {
  bf16* out = nullptr;  // [count]
  int64_t count = 0;
  uint64_t seed = 0;
  uint64_t first = 0;
  float half_width = 1;
};

void fill_random_cpu(Stream& stream, const FillRandomParams& params);
void fill_random_cuda(Stream& stream, const FillRandomParams& params);

}  // namespace oasis::kernels
