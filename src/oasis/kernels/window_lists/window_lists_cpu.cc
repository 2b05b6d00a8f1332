#include <algorithm>

#include "oasis/kernels/window_lists/window_lists.h"

namespace oasis::kernels {

void window_lists_cpu(Stream&, const WindowListsParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const int32_t last = p.positions[r] / p.block_size;
    const int32_t first = std::max(p.begin_block[r], last - p.window_blocks + 1);
    for (int64_t h = 0; h < p.kv_heads; ++h) {
      ListEntry* list = p.entries + (r * p.kv_heads + h) * p.window_blocks;
      for (int32_t b = first; b <= last; ++b) list[b - first] = {b, p.first_page[r] + b % p.ring_pages};
      p.entry_count[r * p.kv_heads + h] = last - first + 1;
    }
  }
}

}  // namespace oasis::kernels
