#pragma once

#include <cstdint>

#include "oasis/device/device.h"

namespace oasis::kernels {

// One block-head (or any run of bytes) to copy.
struct Copy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

struct GatherParams {
  const Copy* copies = nullptr;  // [count]
  int64_t count = 0;
  int64_t bytes = 0;  // each
};

void gather_cpu(Stream& stream, const GatherParams& params);
void gather_cuda(Stream& stream, const GatherParams& params);

}  // namespace oasis::kernels
