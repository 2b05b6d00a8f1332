#include "oasis/kernels/locate/locate.h"

namespace oasis::kernels {

void locate_cpu(Stream&, const LocateParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const int32_t block = p.block[r];
    for (int64_t h = 0; h < p.kv_heads; ++h) {
      int32_t& page = p.pages[r * p.kv_heads + h];
      page = -1;
      if (block < 0) continue;
      const BlockTable& table = p.tables[p.table[r]];
      const int32_t slot = table.maps ? table.maps[h].slot_of_block[block] : block;
      OASIS_CHECK(slot >= 0, "block {} owns no slot for KV head {}", block, h);
      page = table.page_of_slot[slot];
    }
  }
}

}  // namespace oasis::kernels
