#include <algorithm>

#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/swiglu/swiglu.h"
#include "oasis/kernels/swiglu/swiglu_range.h"
#include "oasis/kernels/swiglu/swiglu_vec.h"

namespace oasis::kernels {

void swiglu_cpu(Stream& stream, const SwigluParams& p) {
  constexpr int64_t kElementsPerItem = 8192;  // a multiple of the vector; a smaller call does not wake threads
  const auto range = cpu_level() >= CpuLevel::kAvx2 ? swiglu_range_avx2 : swiglu_range;
  stream.pool().run((p.count + kElementsPerItem - 1) / kElementsPerItem, [&](int64_t item, int) {
    const int64_t begin = item * kElementsPerItem;
    range(p.gate + begin, p.up + begin, p.y + begin, std::min(kElementsPerItem, p.count - begin));
  });
}

}  // namespace oasis::kernels
