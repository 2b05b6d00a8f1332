#include "oasis/kernels/rope/rope_ref.h"

#include <complex>

namespace oasis::kernels {

void rope_table_ref(const RopeTableParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t i = 0; i < p.head_dim / 2; ++i) {
      const double position = p.positions[r] < 0 ? 0 : p.positions[r];
      const std::complex<double> turn = std::polar(static_cast<double>(p.scale), position * p.frequencies[i]);
      p.cos_sin[r * p.head_dim + i] = static_cast<float>(turn.real());
      p.cos_sin[r * p.head_dim + p.head_dim / 2 + i] = static_cast<float>(turn.imag());
    }
  }
}

void rope_ref(const RopeParams& p) {
  const int64_t half = p.head_dim / 2;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const float* x = p.x + r * p.x_stride + h * p.head_dim;
        const std::complex<double> pair =
            p.interleaved ? std::complex<double>(x[2 * i], x[2 * i + 1]) : std::complex<double>(x[i], x[half + i]);
        const float* table = p.cos_sin + r * p.head_dim;
        const std::complex<double> turned = pair * std::complex<double>(table[i], table[half + i]);
        p.y[r * p.y_stride + h * p.head_dim + i] = static_cast<float>(turned.real());
        p.y[r * p.y_stride + h * p.head_dim + half + i] = static_cast<float>(turned.imag());
      }
    }
  }
}

}  // namespace oasis::kernels
