#include "oasis/kernels/append/append_ref.h"

#include <bit>
#include <cmath>
#include <cstring>

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

}  // namespace

void append_ref(const AppendParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t h = 0; h < p.kv_heads && p.positions[r] >= 0; ++h) {
      std::byte* k = p.pool.base + p.pages[r * p.kv_heads + h] * p.pool.page_stride + h * p.pool.head_stride +
                     p.positions[r] % p.block_size * p.pool.token_stride;
      for (int64_t j = 0; j < p.head_dim; ++j) {
        const uint16_t key = nearest_bf16(p.k[r * p.k_stride + h * p.head_dim + j]);
        const uint16_t value = nearest_bf16(p.v[r * p.v_stride + h * p.head_dim + j]);
        std::memcpy(k + 2 * j, &key, 2);
        std::memcpy(k + p.pool.v_offset + 2 * j, &value, 2);
      }
    }
  }
}

}  // namespace oasis::kernels
