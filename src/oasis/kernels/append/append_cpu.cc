#include <algorithm>
#include <vector>

#include "oasis/base/numeric.h"
#include "oasis/kernels/append/append.h"
#include "oasis/kernels/fp8_row.h"

namespace oasis::kernels {
namespace {

void round_to_bf16(const float* x, int64_t n, bf16* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}

// `row` [d] and `bytes` [d]: scratch.
void write_row(const AppendParams& p, const float* x, std::byte* to, uint8_t* scale, bf16* row, uint8_t* bytes) {
  const int64_t d = p.head_dim;
  if (p.pool.type == KvType::kFp8E4M3) {
    round_to_bf16(x, d, row);
    *scale = write_fp8_row(row, d, reinterpret_cast<uint8_t*>(to));
  } else if (p.fp8_values) {
    round_to_bf16(x, d, row);
    const uint8_t s = write_fp8_row(row, d, bytes);
    read_fp8_row(bytes, s, d, reinterpret_cast<bf16*>(to));
  } else {
    round_to_bf16(x, d, reinterpret_cast<bf16*>(to));
  }
}

}  // namespace

void append_cpu(Stream& stream, const AppendParams& p) {
  constexpr int64_t kElementsPerItem = 16384;  // a smaller call is done before a sleeping thread has woken
  const int64_t row_elements = std::max<int64_t>(1, 2 * p.kv_heads * p.head_dim);
  const int64_t rows_per_item = std::max<int64_t>(1, kElementsPerItem / row_elements);
  stream.pool().run((p.rows + rows_per_item - 1) / rows_per_item, [&](int64_t item, int) {
    static thread_local std::vector<bf16> row;
    static thread_local std::vector<uint8_t> bytes;
    row.resize(static_cast<size_t>(p.head_dim));
    bytes.resize(static_cast<size_t>(p.head_dim));
    const int64_t end = std::min(p.rows, (item + 1) * rows_per_item);
    for (int64_t r = item * rows_per_item; r < end; ++r) {
      if (p.positions[r] < 0) continue;
      const int64_t token = p.positions[r] % p.block_size;
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        const int64_t page = p.pages[r * p.kv_heads + h];
        uint8_t* scales = p.pool.scales(page, h);
        write_row(p, p.k + r * p.k_stride + h * p.head_dim, p.pool.k(page, h, token), scales + token, row.data(),
                  bytes.data());
        write_row(p, p.v + r * p.v_stride + h * p.head_dim, p.pool.v(page, h, token), scales + p.block_size + token,
                  row.data(), bytes.data());
      }
    }
  });
}

}  // namespace oasis::kernels
