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

}  // namespace oasis
