// How a row of K or V lies in FP8: its d elements as E4M3 bytes, and one scale byte beside them. The scale is a power
// of two (OCP E8M0: 2^(byte - 127)), the smallest that brings the row's largest value within E4M3's 448, so a value is
// its byte times the scale exactly, and is a normal bf16 number or zero. What a row comes to depends on nothing but the
// row: not on its block, on when that is sealed, or on the tier. A row with a NaN or an infinity is NaN altogether.
//
// Rows are rounded to bf16 before, and quantising a row that came out of FP8 gives its values back.
#pragma once

#include <algorithm>
#include <limits>

#include "oasis/base/numeric.h"

namespace oasis::kernels {

constexpr uint8_t kFp8NanScale = 255;

// The scale byte of a row of bf16.
inline uint8_t fp8_row_scale(const bf16* row, int64_t d) {
  uint16_t peak = 0;
  for (int64_t i = 0; i < d; ++i) peak = std::max<uint16_t>(peak, row[i].bits & 0x7fff);
  if (peak >= 0x7f80) return kFp8NanScale;
  // 448 is 1.75 * 2^8: 0x1f carries a fraction above .75 into the exponent. The bounds keep every value of the row a
  // normal bf16.
  return static_cast<uint8_t>(std::clamp(((peak + 0x1f) >> 7) - 8, 10, 246));
}

inline float fp8_scale_value(uint8_t scale) {
  return scale == kFp8NanScale ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(uint32_t{scale} << 23);
}

// Writes the row's bytes; returns its scale byte.
inline uint8_t write_fp8_row(const bf16* row, int64_t d, uint8_t* bytes) {
  const uint8_t scale = fp8_row_scale(row, d);
  const float inverse = std::bit_cast<float>((254u - std::min<uint32_t>(scale, 246)) << 23);
  for (int64_t i = 0; i < d; ++i) bytes[i] = to_fp8_e4m3(to_float(row[i]) * inverse).bits;
  return scale;
}

inline void read_fp8_row(const uint8_t* bytes, uint8_t scale, int64_t d, bf16* row) {
  const float factor = fp8_scale_value(scale);
  for (int64_t i = 0; i < d; ++i) row[i] = to_bf16(to_float(fp8_e4m3{bytes[i]}) * factor);
}

}  // namespace oasis::kernels
