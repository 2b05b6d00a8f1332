#include <cstring>

#include "oasis/kernels/fp8_row.h"
#include "oasis/kernels/unpack/unpack.h"

namespace oasis::kernels {

void unpack_cpu(Stream& stream, const UnpackParams& p) {
  const int64_t d = p.head_dim, elements = p.block_size * d;
  stream.pool().run(p.count, [&](int64_t i, int) {
    const Copy& copy = p.copies[i];
    for (int64_t which = 0; which < 2; ++which) {
      std::byte* to = copy.to + which * p.v_offset;
      if (p.type == KvType::kBf16) {
        std::memcpy(to, copy.from + which * elements * 2, static_cast<size_t>(elements * 2));
        continue;
      }
      const auto* rows = reinterpret_cast<const uint8_t*>(copy.from) + which * elements;
      const auto* scales = reinterpret_cast<const uint8_t*>(copy.from) + 2 * elements + which * p.block_size;
      for (int64_t t = 0; t < p.block_size; ++t)
        read_fp8_row(rows + t * d, scales[t], d, reinterpret_cast<bf16*>(to) + t * d);
    }
  });
}

}  // namespace oasis::kernels
