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

// These two choose without a branch, so that loops over them become vectors.
inline float to_float(fp8_e4m3 x) {
  const uint32_t sign = (x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  const uint32_t finite = magnitude < 8 ? std::bit_cast<uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(sign | (magnitude == 0x7f ? 0x7fc00000u : finite));
}

// Saturates at +-448; NaN stays NaN.
inline fp8_e4m3 to_fp8_e4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu;
  // The unit in the last place at 2^14 is that of E4M3's subnormals, 2^-9: adding rounds to it.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) & 15u;
  const uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  const uint32_t rounded = magnitude < 0x3c800000u ? subnormal : normal;  // 2^-6
  const uint32_t finite = rounded < 0x7e ? rounded : 0x7e;
  return {static_cast<uint8_t>((u >> 24 & 0x80u) | (magnitude > 0x7f800000u ? 0x7fu : finite))};
}

}  // namespace oasis
