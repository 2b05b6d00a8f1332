// The oracle of fp8_row.h, from its definition: only tests include it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace oasis::kernels {

// The non-negative finite numbers of E4M3 by code: 4 bits of exponent with bias 7, 3 of fraction, subnormals below.
inline double e4m3_ref(int code) {
  const int exponent = code >> 3, fraction = code & 7;
  return exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
}

// What a reader sees of a row of finite bf16 numbers that lies in FP8.
inline std::vector<double> fp8_row_ref(const std::vector<double>& row) {
  double peak = 0;
  for (const double x : row) peak = std::fmax(peak, std::fabs(x));
  int exponent = -117;  // of the scale
  while (exponent < 119 && std::ldexp(448, exponent) < peak) ++exponent;
  std::vector<double> out;
  for (const double x : row) {
    int best = 0;
    double error = std::numeric_limits<double>::infinity();
    for (int code = 0; code < 0x7f; ++code) {
      const double e = std::fabs(std::fabs(x) - std::ldexp(e4m3_ref(code), exponent));
      if (e < error || (e == error && code % 2 == 0)) best = code, error = e;
    }
    out.push_back(std::copysign(std::ldexp(e4m3_ref(best), exponent), x));
  }
  return out;
}

// A row in FP8 as a reader sees it.
inline std::vector<double> read_fp8_row_ref(const uint8_t* bytes, uint8_t scale, int64_t d) {
  std::vector<double> out;
  for (int64_t i = 0; i < d; ++i) {
    const double magnitude = std::ldexp(e4m3_ref(bytes[i] & 0x7f), scale - 127);
    out.push_back(scale == 255 ? std::nan("") : bytes[i] & 0x80 ? -magnitude : magnitude);
  }
  return out;
}

}  // namespace oasis::kernels
