// 16- and 8-bit floating point formats as they lie in memory, and their conversions (round to nearest, ties to even).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace oasis {

// bfloat16: the upper half of an IEEE float.
struct bf16 {
  uint16_t bits = 0;
};

// IEEE half precision.
struct fp16 {
  uint16_t bits = 0;
};

// FP8 E4M3 (OCP "E4M3FN"): no infinities, 0x7f/0xff are NaN, largest finite value 448.
struct fp8_e4m3 {
  uint8_t bits = 0;
};

inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};  // NaN stays NaN
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline float to_float(fp16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, exponent = (x.bits >> 10) & 31u, fraction = x.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // subnormal
  return sign ? -magnitude : magnitude;
}

fp16 to_fp16(float x);
float to_float(fp8_e4m3 x);
// Saturates at +-448; NaN stays NaN.
fp8_e4m3 to_fp8_e4m3(float x);

}  // namespace oasis
