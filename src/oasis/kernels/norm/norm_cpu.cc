#include <algorithm>
#include <cmath>

#include "oasis/kernels/norm/norm.h"
#include "oasis/kernels/vec8.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kElementsPerItem = 16384;  // a smaller call is done before a sleeping thread has woken

float sum_of_squares(const float* x, int64_t n) {
  F8 sum[4] = {};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int j = 0; j < 4; ++j) {
      const F8 a = load8(x + i + 8 * j);
      sum[j] += a * a;
    }
  }
  for (; i + 8 <= n; i += 8) {
    const F8 a = load8(x + i);
    sum[0] += a * a;
  }
  float rest = 0;
  for (; i < n; ++i) rest += x[i] * x[i];
  return sum8((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

void norm_row(const float* x, const float* weight, float eps, float* y, int64_t n) {
  const float scale = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(y + i, load8(x + i) * splat8(scale) * load8(weight + i));
  for (; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

}  // namespace

void rms_norm_cpu(Stream& stream, const RmsNormParams& p) {
  const int64_t rows_per_item = std::max<int64_t>(1, kElementsPerItem / std::max<int64_t>(1, p.cols));
  stream.pool().run((p.rows + rows_per_item - 1) / rows_per_item, [&](int64_t item, int) {
    const int64_t end = std::min(p.rows, (item + 1) * rows_per_item);
    for (int64_t r = item * rows_per_item; r < end; ++r)
      norm_row(p.x + r * p.x_stride, p.weight, p.eps, p.y + r * p.y_stride, p.cols);
  });
}

}  // namespace oasis::kernels
