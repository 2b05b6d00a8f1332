#include "oasis/kernels/swiglu/swiglu_range.h"
#include "oasis/kernels/swiglu/swiglu_vec.h"

namespace oasis::kernels {

void swiglu_range_avx2(const float* gate, const float* up, float* y, int64_t count) {
  swiglu_range(gate, up, y, count);
}

}  // namespace oasis::kernels
