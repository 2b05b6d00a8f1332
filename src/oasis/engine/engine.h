// The engine: continuous batching of many sequences over one model, one KV core and one drafter. Thread-safe API; all
// work is done by whoever calls step() or run_until_idle(), or by the engine's own thread after start().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "oasis/draft/drafter.h"
#include "oasis/engine/config.h"
#include "oasis/engine/memory_plan.h"
#include "oasis/engine/request.h"
#include "oasis/kv/home_store.h"
#include "oasis/lookahead/stats.h"
#include "oasis/lookahead/timeline.h"
#include "oasis/model/checkpoint.h"
#include "oasis/text/tokenizer.h"

namespace oasis::engine {

using RequestId = int64_t;

// One sequence as it was at the last step border.
struct SequenceInfo {
  RequestId id = 0;
  std::string_view state;     // waiting, prefill, running, preempted
  int32_t prompt_tokens = 0;  // of them `prefilled` are read
  int32_t prefilled = 0;
  int32_t output_tokens = 0;
  bool sparse = false;          // reads a working set, not everything
  int32_t resident_blocks = 0;  // sealed blocks that each head holds in the fast tier, at most
  int32_t total_blocks = 0;     // sealed blocks, all of them home in the capacity tier
  double age_seconds = 0;       // since it was submitted
};

// A snapshot of the engine's counters.
struct EngineMetrics {
  int32_t waiting = 0, prefilling = 0, running = 0, preempted = 0;
  int64_t finished = 0, failed = 0, cancelled = 0, preemptions = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, steps = 0;
  double prefill_seconds = 0, decode_seconds = 0,
         draft_seconds = 0;  // draft_seconds: of the drafter, part of the former two
  int64_t proposed = 0, compared = 0, right = 0, accepted = 0;
  lookahead::CoreStats core;
  kv::HomeStoreStats homes;
  kv::TierStats tier;
  int64_t fast_bytes_limit = 0, fast_bytes_used = 0, fast_bytes_peak = 0, capacity_bytes = 0, weight_bytes = 0;
  int32_t free_pages = 0, pages = 0;
  std::vector<SequenceInfo> sequences;  // those with an index, the preempted, then the queue's first hundred
};

class Engine {
 public:
  // Borrows device, checkpoint and tokenizer (null: events carry no text, stop strings are refused); they must outlive
  // the engine.
  static Result<std::unique_ptr<Engine>> create(Device& device, const model::Checkpoint& checkpoint,
                                                const text::Tokenizer* tokenizer, EngineConfig config);
  ~Engine();

  // Checks the request and queues it. An error: it can never run (the reason names the limit).
  Result<RequestId> submit(Request request);
  // The request ends with kCancelled at the next step border; unknown or finished ids are ignored. From any thread.
  void cancel(RequestId id);

  // Does one piece of work: a prefill item, a decode step, or both. False: nothing to do.
  bool step();
  void run_until_idle();
  void start();  // a thread of its own until stop()
  void stop();

  // With a capacity file: keeps what the prefix cache holds for the next engine of the same model, settings and file.
  // Stopped, or between steps on the thread that steps.
  Status save_prefix_cache();

  // The costs of a request that has ended, once.
  std::optional<RequestStats> take_stats(RequestId id);
  EngineMetrics metrics() const;
  // With EngineConfig::timeline on a GPU: the parts of the last two steps. Between steps, on the thread that steps.
  std::vector<lookahead::TimelineSpan> timeline();
  const MemoryPlan& plan() const;
  const EngineConfig& config() const;
  const draft::Drafter& drafter() const;
  // Tests: ends all transfers, then checks that every byte has one owner. Idle: nothing may be left behind.
  Status check_integrity();
  // Tests: the sequence of a running request is preempted before the next step.
  void preempt_for_test(RequestId id);

  struct Impl;
  // Tests: the insides (engine_impl.h), on the engine's thread.
  Impl& impl_for_test() { return *impl_; }

 private:
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oasis::engine
