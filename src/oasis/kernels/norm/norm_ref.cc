#include "oasis/kernels/norm/norm_ref.h"

#include <cmath>

namespace oasis::kernels {

void rms_norm_ref(const RmsNormParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < p.cols; ++i) squares += std::pow(static_cast<double>(p.x[r * p.x_stride + i]), 2);
    const double root = std::sqrt(squares / static_cast<double>(p.cols) + static_cast<double>(p.eps));
    for (int64_t i = 0; i < p.cols; ++i)
      p.y[r * p.y_stride + i] = static_cast<float>(p.x[r * p.x_stride + i] / root * p.weight[i]);
  }
}

}  // namespace oasis::kernels
