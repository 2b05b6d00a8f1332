// What a monitoring system reads: Prometheus text. Names of vLLM where the meaning is the same, oasis_* for the rest.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <atomic>
#include <string>
#include <string_view>

#include "oasis/engine/engine.h"
#include "oasis/serve/latency.h"

namespace oasis::serve {

// Thread-safe: the engine's thread tells of tokens, the server's of requests.
class Metrics {
 public:
  explicit Metrics(const std::string& model);

  void first_token(double seconds_since_arrival);
  // `tokens` came together, this long after the ones before.
  void next_tokens(double seconds, int tokens);
  // A choice has ended.
  void ended(engine::FinishReason reason, const engine::RequestStats& stats, double seconds_since_arrival);
  void answered(std::string_view endpoint, int status);

  // The page for /metrics.
  std::string text(const engine::EngineMetrics& engine, const engine::MemoryPlan& plan) const;

  const LatencyWindow& first_token_window() const { return first_token_window_; }
  const LatencyWindow& token_gap_window() const { return token_gap_window_; }
  const LatencyWindow& request_window() const { return request_window_; }

 private:
  prometheus::Histogram& histogram(const char* name, const char* help,
                                   const prometheus::Histogram::BucketBoundaries& b);

  const std::string model_;
  prometheus::Registry registry_;
  prometheus::Histogram &first_token_, &token_gap_, &token_gap_alias_, &request_, &queue_, &prefill_, &decode_;
  prometheus::Histogram &prompt_length_, &output_length_;
  prometheus::Family<prometheus::Counter>&success_, &answers_;
  LatencyWindow first_token_window_, token_gap_window_, request_window_;
  std::atomic<int64_t> sequence_steps_{0}, accepted_{0};  // of requests that have ended
};

}  // namespace oasis::serve
