#include "oasis/kernels/matmul/matmul_ref.h"

#include <algorithm>
#include <cmath>

namespace oasis::kernels {
namespace {

// IEEE half, from its definition.
double half(const uint8_t* p) {
  const int bits = p[0] + 256 * p[1], exponent = bits / 1024 % 32, fraction = bits % 1024;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits >= 32768 ? -magnitude : magnitude;
}

double brain(const uint8_t* p) {
  const int bits = p[0] + 256 * p[1], exponent = bits / 128 % 256, fraction = bits % 128;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134);
  return bits >= 32768 ? -magnitude : magnitude;
}

double single(const uint8_t* p) {
  const int64_t bits = p[0] + 256ll * p[1] + 65536ll * p[2] + 16777216ll * p[3];
  const int64_t exponent = bits / 8388608 % 256, fraction = bits % 8388608;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -149) : std::ldexp(8388608 + fraction, static_cast<int>(exponent) - 150);
  return bits >= 2147483648ll ? -magnitude : magnitude;
}

int signed_byte(uint8_t b) { return b < 128 ? b : b - 256; }

// Bits [low, low + n) of a byte.
int bits(uint8_t byte, int low, int n) { return byte / (1 << low) % (1 << n); }

// Nibble of element e in 16 bytes: low nibbles are elements 0 .. 15, high ones 16 .. 31.
int nibble(const uint8_t* p, int e) { return bits(p[e % 16], e < 16 ? 0 : 4, 4); }

// 6-bit pairs (scale, minimum) in 12 bytes: the first four in bytes 0-3 and 4-7, the low nibbles of the last four in
// bytes 8-11, their upper two bits on top of bytes 0-7.
int k_scale(const uint8_t* s, int j) {
  return j < 4 ? bits(s[j], 0, 6) : bits(s[j + 4], 0, 4) + 16 * bits(s[j - 4], 6, 2);
}
int k_min(const uint8_t* s, int j) {
  return j < 4 ? bits(s[j + 4], 0, 6) : bits(s[j + 4], 4, 4) + 16 * bits(s[j], 6, 2);
}

// Element e of the block at p.
double element(DType type, const uint8_t* p, int e) {
  switch (type) {
    case DType::kF32:
      return single(p);
    case DType::kF16:
      return half(p);
    case DType::kBF16:
      return brain(p);
    case DType::kQ4_0:
      return half(p) * (nibble(p + 2, e) - 8);
    case DType::kQ4_1:
      return half(p) * nibble(p + 4, e) + half(p + 2);
    case DType::kQ8_0:
      return half(p) * signed_byte(p[2 + e]);
    case DType::kQ4_K:
    case DType::kQ5_K: {
      // Sub-blocks 2 k and 2 k + 1 are the low and the high nibbles of bytes 32 k .. 32 k + 31; Q5_K has bit 4 of
      // sub-block j in bit j of qh.
      const int j = e / 32, l = e % 32;
      const uint8_t* q = p + (type == DType::kQ4_K ? 16 : 48);
      int value = bits(q[j / 2 * 32 + l], j % 2 * 4, 4);
      if (type == DType::kQ5_K) value += 16 * bits(p[16 + l], j, 1);
      return half(p) * k_scale(p + 4, j) * value - half(p + 2) * k_min(p + 4, j);
    }
    case DType::kQ6_K: {
      const int h = e / 128, group = e % 128 / 32, l = e % 32;
      const int low = bits(p[h * 64 + group % 2 * 32 + l], group / 2 * 4, 4);
      const int high = bits(p[128 + h * 32 + l], 2 * group, 2);
      return half(p + 208) * signed_byte(p[192 + h * 8 + l / 16 + 2 * group]) * (low + 16 * high - 32);
    }
    case DType::kI64:
    case DType::kBool:
      break;
  }
  return NAN;
}

}  // namespace

std::vector<double> weight_row_ref(const WeightView& w, int64_t row) {
  const int block = info(w.type).block_elements, bytes = info(w.type).block_bytes;
  const auto* p = static_cast<const uint8_t*>(w.data) + row * w.cols / block * bytes;
  std::vector<double> out;
  for (int64_t k = 0; k < w.cols; ++k)
    out.push_back(element(w.type, p + k / block * bytes, static_cast<int>(k % block)));
  return out;
}

ProductRef product_ref(const float* x, const std::vector<double>& w, ActivationsRef activations, bool bf16_weights) {
  ProductRef p{};
  double variance = 0;
  for (size_t k = 0; k < w.size(); ++k) {
    p.value += x[k] * w[k];
    p.magnitude += std::abs(x[k] * w[k]);
    double half_unit = 0;
    if (activations == ActivationsRef::kBf16) half_unit = std::abs(x[k]) / 256;
    if (activations == ActivationsRef::kInt8Blocks || activations == ActivationsRef::kInt16Blocks) {
      const double units = activations == ActivationsRef::kInt8Blocks ? 127 : 32639;
      const float* block = x + k / 32 * 32;
      for (int i = 0; i < 32; ++i) half_unit = std::max<double>(half_unit, std::abs(block[i]) / (2 * units));
    }
    const double from_x = half_unit * std::abs(w[k]), from_w = bf16_weights ? std::abs(x[k] * w[k]) / 256 : 0;
    p.tolerance += from_x + from_w;
    variance += (from_x * from_x + from_w * from_w) / 3;
  }
  p.deviation = std::sqrt(variance);
  return p;
}

}  // namespace oasis::kernels
