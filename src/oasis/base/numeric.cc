#include "oasis/base/numeric.h"

namespace oasis {

fp16 to_fp16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to 2^16 or more
  if (magnitude < 0x38800000u) {                                                 // below 2^-14: subnormal or zero
    const float units = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f);
    return {static_cast<uint16_t>(sign | static_cast<uint32_t>(units))};
  }
  const uint32_t rebased = magnitude - (112u << 23);
  return {static_cast<uint16_t>(sign | (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13)};
}

float to_float(fp8_e4m3 x) {
  const uint32_t exponent = (x.bits >> 3) & 15u, fraction = x.bits & 7u;
  float magnitude;
  if (exponent == 15 && fraction == 7) {
    magnitude = std::nanf("");
  } else if (exponent == 0) {
    magnitude = static_cast<float>(fraction) * 0x1p-9f;
  } else {
    magnitude = std::bit_cast<float>((exponent + 120) << 23 | fraction << 20);
  }
  return x.bits & 0x80u ? -magnitude : magnitude;
}

fp8_e4m3 to_fp8_e4m3(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return {static_cast<uint8_t>(sign | 0x7f)};
  if (magnitude >= 464.0f) return {static_cast<uint8_t>(sign | 0x7e)};  // halfway to the next step: saturate
  if (magnitude < 0x1p-6f) {
    return {static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f)))};
  }
  const uint32_t u = std::bit_cast<uint32_t>(magnitude) - (120u << 23);
  const uint32_t rounded = (u + 0x7ffffu + ((u >> 20) & 1u)) >> 20;
  return {static_cast<uint8_t>(sign | (rounded > 0x7e ? 0x7e : rounded))};
}

}  // namespace oasis
