// What all connections share. On the server's thread, but for what says otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_set>

#include "oasis/engine/engine.h"
#include "oasis/serve/api_keys.h"
#include "oasis/serve/metrics.h"
#include "oasis/serve/request_log.h"
#include "oasis/serve/served_model.h"

namespace oasis::serve {

struct ServeConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;     // 0: any free one
  int32_t max_queue = 128;  // choices that may wait besides those that run
  int64_t body_bytes = 16 << 20;
  double read_seconds = 30;   // for the header, and again for the body
  double drain_seconds = 30;  // for running requests after SIGTERM
  LogFormat log_format = LogFormat::kText;
  bool log_prompts = false;
  ApiKeys keys;

  // Not options: nobody has needed another value.
  int32_t header_bytes = 32 << 10;
  double idle_seconds = 75;              // between requests of a connection
  double write_seconds = 60;             // a client that takes nothing for so long is gone
  int64_t stream_bytes = 1 << 20;        // output that waits for a slow client
  int64_t total_body_bytes = 256 << 20;  // of all bodies that are being read
  size_t max_connections = 1024;
};

class Generation;

struct Service {
  using Clock = std::chrono::steady_clock;

  engine::Engine& engine;
  ServedModel model;
  ServeConfig config;
  Metrics metrics{model.name};  // thread-safe
  Clock::time_point started = Clock::now();
  bool draining = false;
  int32_t active = 0;      // choices that the engine has and that have not ended
  int64_t body_bytes = 0;  // of bodies that are being read
  int64_t next_request = 1;
  std::unordered_set<Generation*> generations;  // with choices that have not ended

  int32_t max_choices() const { return engine.config().max_sequences + config.max_queue; }
  double uptime_seconds() const { return std::chrono::duration<double>(Clock::now() - started).count(); }
};

}  // namespace oasis::serve
