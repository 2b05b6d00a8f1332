#include "oasis/kernels/swiglu/swiglu_ref.h"

#include <cmath>

namespace oasis::kernels {

void swiglu_ref(const SwigluParams& p) {
  for (int64_t i = 0; i < p.count; ++i) {
    const double gate = p.gate[i];
    p.y[i] = static_cast<float>(gate / (1 + std::exp(-gate)) * p.up[i]);
  }
}

}  // namespace oasis::kernels
