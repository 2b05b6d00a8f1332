#include <algorithm>
#include <cmath>

#include "oasis/kernels/rope/rope.h"
#include "oasis/kernels/vec8.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kElementsPerItem = 16384;  // a smaller call is done before a sleeping thread has woken
constexpr int64_t kAnglesPerItem = 512;

void rotate_half_split(const float* x, const float* cos, const float* sin, float* y, int64_t half) {
  int64_t i = 0;
  for (; i + 8 <= half; i += 8) {
    const F8 a = load8(x + i), b = load8(x + half + i), c = load8(cos + i), s = load8(sin + i);
    store8(y + i, a * c - b * s);
    store8(y + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    y[i] = a * cos[i] - b * sin[i];
    y[half + i] = b * cos[i] + a * sin[i];
  }
}

void rotate_interleaved(const float* x, const float* cos, const float* sin, float* y, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[i] = a * cos[i] - b * sin[i];
    y[half + i] = b * cos[i] + a * sin[i];
  }
}

// Splits rows over the pool in runs of about `per_item` elements.
template <typename Body>
void for_rows(Stream& stream, int64_t rows, int64_t row_elements, int64_t per_item, Body body) {
  const int64_t rows_per_item = std::max<int64_t>(1, per_item / std::max<int64_t>(1, row_elements));
  stream.pool().run((rows + rows_per_item - 1) / rows_per_item, [&](int64_t item, int) {
    const int64_t end = std::min(rows, (item + 1) * rows_per_item);
    for (int64_t r = item * rows_per_item; r < end; ++r) body(r);
  });
}

}  // namespace

void rope_table_cpu(Stream& stream, const RopeTableParams& p) {
  const int64_t half = p.head_dim / 2;
  for_rows(stream, p.rows, half, kAnglesPerItem, [&](int64_t r) {
    float* cos = p.cos_sin + r * 2 * half;
    float* sin = cos + half;
    const double position = std::max(0, p.positions[r]);
    for (int64_t i = 0; i < half; ++i) {
      const double angle = position * p.frequencies[i];
      cos[i] = static_cast<float>(std::cos(angle) * p.scale);
      sin[i] = static_cast<float>(std::sin(angle) * p.scale);
    }
  });
}

void rope_cpu(Stream& stream, const RopeParams& p) {
  const int64_t half = p.head_dim / 2;
  for_rows(stream, p.rows, p.heads * p.head_dim, kElementsPerItem, [&](int64_t r) {
    const float* cos = p.cos_sin + r * 2 * half;
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* x = p.x + r * p.x_stride + h * p.head_dim;
      float* y = p.y + r * p.y_stride + h * p.head_dim;
      if (p.interleaved) {
        rotate_interleaved(x, cos, cos + half, y, half);
      } else {
        rotate_half_split(x, cos, cos + half, y, half);
      }
    }
  });
}

}  // namespace oasis::kernels
