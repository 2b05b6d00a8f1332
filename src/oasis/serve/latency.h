// Percentiles of what happened lately.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace oasis::serve {

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;  // seconds; 0 without samples
  size_t samples = 0;
};

// The last kWindow samples. Thread-safe.
class LatencyWindow {
 public:
  static constexpr size_t kWindow = 2048;
  void add(double seconds);
  Percentiles percentiles() const;

 private:
  mutable std::mutex mutex_;
  std::vector<double> samples_;
  size_t next_ = 0;
};

}  // namespace oasis::serve
