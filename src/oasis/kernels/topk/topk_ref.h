#pragma once

#include <cstdint>
#include <vector>

namespace oasis::kernels {

// The best min(k, n) blocks in rank order, found one after another: n * k comparisons.
std::vector<int32_t> topk_ref(const std::vector<float>& scores, int64_t k, bool pin_first);

}  // namespace oasis::kernels
