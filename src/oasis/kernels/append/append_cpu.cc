#include <algorithm>

#include "oasis/base/numeric.h"
#include "oasis/base/status.h"
#include "oasis/kernels/append/append.h"

namespace oasis::kernels {
namespace {

void write_bf16(const float* x, std::byte* to, int64_t n) {
  auto* y = reinterpret_cast<bf16*>(to);
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}

}  // namespace

void append_cpu(Stream& stream, const AppendParams& p) {
  OASIS_CHECK(p.pool.type == KvType::kBf16, "append writes bf16 slots, this pool's KvType is {}: open blocks are bf16",
              static_cast<int>(p.pool.type));
  constexpr int64_t kElementsPerItem = 16384;  // a smaller call is done before a sleeping thread has woken
  const int64_t row_elements = std::max<int64_t>(1, 2 * p.kv_heads * p.head_dim);
  const int64_t rows_per_item = std::max<int64_t>(1, kElementsPerItem / row_elements);
  stream.pool().run((p.rows + rows_per_item - 1) / rows_per_item, [&](int64_t item, int) {
    const int64_t end = std::min(p.rows, (item + 1) * rows_per_item);
    for (int64_t r = item * rows_per_item; r < end; ++r) {
      if (p.positions[r] < 0) continue;
      const int64_t token = p.positions[r] % p.block_size;
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        const int64_t page = p.pages[r * p.kv_heads + h];
        write_bf16(p.k + r * p.k_stride + h * p.head_dim, p.pool.k(page, h, token), p.head_dim);
        write_bf16(p.v + r * p.v_stride + h * p.head_dim, p.pool.v(page, h, token), p.head_dim);
      }
    }
  });
}

}  // namespace oasis::kernels
