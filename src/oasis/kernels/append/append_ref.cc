#include "oasis/kernels/append/append_ref.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "oasis/kernels/fp8_row_ref.h"

namespace oasis::kernels {
namespace {

// The nearest float whose lower 16 bits are zero, ties to the one with an even upper half.
uint16_t nearest_bf16(float x) {
  const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);  // towards zero
  const auto above = static_cast<uint16_t>(below + 1);
  const double low = std::bit_cast<float>(uint32_t{below} << 16), high = std::bit_cast<float>(uint32_t{above} << 16);
  const double to_low = std::abs(x - low), to_high = std::abs(high - x);
  if (to_low != to_high) return to_low < to_high ? below : above;
  return below % 2 == 0 ? below : above;
}

double from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Code and scale byte whose value is `x`: the oracle of values gives no bytes.
void write_row(const AppendParams& p, const float* x, std::byte* to, std::byte* scale) {
  std::vector<double> row;
  for (int64_t j = 0; j < p.head_dim; ++j) row.push_back(from_bf16(nearest_bf16(x[j])));
  const bool fp8 = p.pool.type == KvType::kFp8E4M3;
  double peak = 0;
  for (const double value : row) peak = std::fmax(peak, std::fabs(value));
  if (fp8 || p.fp8_values) row = fp8_row_ref(row);
  int exponent = -117;
  while (std::ldexp(448, exponent) < peak) ++exponent;
  if (fp8) *scale = static_cast<std::byte>(exponent + 127);
  for (int64_t j = 0; j < p.head_dim; ++j) {
    const double value = row[static_cast<size_t>(j)];
    if (fp8) {
      int code = 0;
      while (std::ldexp(e4m3_ref(code), exponent) != std::fabs(value)) ++code;
      to[j] = static_cast<std::byte>(code | (std::signbit(value) ? 0x80 : 0));
    } else {
      const uint16_t bits = nearest_bf16(static_cast<float>(value));
      std::memcpy(to + 2 * j, &bits, 2);
    }
  }
}

}  // namespace

void append_ref(const AppendParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t h = 0; h < p.kv_heads && p.positions[r] >= 0; ++h) {
      const int64_t token = p.positions[r] % p.block_size;
      std::byte* slot = p.pool.base + p.pages[r * p.kv_heads + h] * p.pool.page_stride + h * p.pool.head_stride;
      std::byte *k = slot + token * p.pool.token_stride, *scale = slot + p.pool.scale_offset + token;
      write_row(p, p.k + r * p.k_stride + h * p.head_dim, k, scale);
      write_row(p, p.v + r * p.v_stride + h * p.head_dim, k + p.pool.v_offset, scale + p.block_size);
    }
  }
}

}  // namespace oasis::kernels
