#include "oasis/kernels/topk/topk_ref.h"

#include <cmath>

namespace oasis::kernels {

std::vector<int32_t> topk_ref(const std::vector<float>& scores, int64_t k, bool pin_first) {
  const size_t n = scores.size();
  std::vector<bool> taken(n, false);
  std::vector<int32_t> out;
  while (out.size() < n && static_cast<int64_t>(out.size()) < k) {
    size_t best = n;
    for (size_t b = 0; b < n; ++b) {
      if (taken[b]) continue;
      const bool better = best == n || scores[b] > scores[best] || (std::isnan(scores[best]) && !std::isnan(scores[b]));
      if (better) best = b;
    }
    if (pin_first && out.empty()) best = 0;
    taken[best] = true;
    out.push_back(static_cast<int32_t>(best));
  }
  return out;
}

}  // namespace oasis::kernels
