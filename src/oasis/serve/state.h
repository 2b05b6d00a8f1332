// GET /state: one JSON document about the server at this moment, for an operator's page.
#pragma once

#include <string>

#include "oasis/engine/engine.h"
#include "oasis/serve/metrics.h"
#include "oasis/serve/served_model.h"

namespace oasis::serve {

struct ServerLimits {
  int32_t max_sequences = 0, max_queue = 0;
  int64_t body_bytes = 0;
};

std::string state_json(const engine::Engine& engine, const ServedModel& model, const ServerLimits& limits,
                       const Metrics& metrics, double uptime_seconds, bool draining);

// Resident memory of this process.
int64_t rss_bytes();

inline constexpr const char* kVersion = "0.1.0";

}  // namespace oasis::serve
