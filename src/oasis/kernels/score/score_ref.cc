#include "oasis/kernels/score/score_ref.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oasis::kernels {

double score_ref(const std::vector<std::vector<std::vector<double>>>& q, const std::vector<double>& upper,
                 const std::vector<double>& lower, double& magnitude) {
  double best = -std::numeric_limits<double>::infinity();
  magnitude = 0;
  for (const auto& row : q) {
    double sum = 0, absolute = 0;
    for (const auto& head : row) {
      for (size_t i = 0; i < head.size(); ++i) {
        const double term = head[i] * (head[i] > 0 ? upper[i] : lower[i]);
        sum += term;
        absolute += std::abs(term);
      }
    }
    best = std::max(best, sum);
    magnitude = std::max(magnitude, absolute);
  }
  return best;
}

}  // namespace oasis::kernels
