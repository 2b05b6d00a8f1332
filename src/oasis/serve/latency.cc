#include "oasis/serve/latency.h"

#include <algorithm>
#include <cmath>

namespace oasis::serve {

void LatencyWindow::add(double seconds) {
  std::lock_guard lock(mutex_);
  if (samples_.size() < kWindow) {
    samples_.push_back(seconds);
    return;
  }
  samples_[next_] = seconds;
  next_ = (next_ + 1) % kWindow;
}

Percentiles LatencyWindow::percentiles() const {
  std::vector<double> sorted;
  {
    std::lock_guard lock(mutex_);
    sorted = samples_;
  }
  if (sorted.empty()) return {};
  std::sort(sorted.begin(), sorted.end());
  // The smallest sample that at least this share does not exceed.
  const auto at = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
    return sorted[std::max<size_t>(rank, 1) - 1];
  };
  return {.p50 = at(.5), .p90 = at(.9), .p99 = at(.99), .samples = sorted.size()};
}

}  // namespace oasis::serve
