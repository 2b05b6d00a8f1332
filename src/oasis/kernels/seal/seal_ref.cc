#include "oasis/kernels/seal/seal_ref.h"

#include <algorithm>

namespace oasis::kernels {

RefBox seal_ref(const std::vector<std::vector<double>>& keys, double beta) {
  RefBox box;
  for (size_t i = 0; i < keys[0].size(); ++i) {
    std::vector<double> column;
    for (const auto& key : keys) column.push_back(key[i]);
    const auto [low, high] = std::minmax_element(column.begin(), column.end());
    const double middle = (*high + *low) / 2, half = (*high - *low) / 2;
    box.upper.push_back(middle + beta * half);
    box.lower.push_back(middle - beta * half);
  }
  return box;
}

}  // namespace oasis::kernels
