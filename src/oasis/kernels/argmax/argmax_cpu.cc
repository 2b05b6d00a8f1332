#include "oasis/kernels/argmax/argmax.h"

namespace oasis::kernels {

void argmax_cpu(Stream& stream, const ArgmaxParams& p) {
  stream.pool().run(p.rows, [&](int64_t r, int) {
    const float* x = p.x + r * p.cols;
    int32_t best = -1;
    for (int64_t i = 0; i < p.cols; ++i) {
      if (best < 0 ? x[i] == x[i] : x[i] > x[best]) best = static_cast<int32_t>(i);
    }
    p.best[r] = best;
  });
}

}  // namespace oasis::kernels
