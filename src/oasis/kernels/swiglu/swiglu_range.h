// Internal: one range of swiglu for processors with AVX2.
#pragma once

#include <cstdint>

namespace oasis::kernels {

void swiglu_range_avx2(const float* gate, const float* up, float* y, int64_t count);

}  // namespace oasis::kernels
