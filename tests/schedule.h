// Requests that join, leave and are preempted at steps drawn at random, played on an engine: for tests that compare two
// ways of running the same.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "oasis/engine/engine_test_util.h"

namespace oasis::engine::testing {

// What happens before which engine step: the same in both modes.
struct Schedule {
  struct Join {
    Request request;
    int64_t step, cancel_step;
  };
  std::vector<Join> joins;
  std::vector<std::pair<int64_t, size_t>> preemptions;  // (step, join)
};

inline Schedule random_schedule(uint32_t seed, int64_t steps) {
  std::mt19937 random(seed);
  Schedule schedule;
  for (int64_t step = 0; step < steps; step += 1 + static_cast<int64_t>(random() % 40)) {
    Request r;
    const int64_t prompt = 1 + static_cast<int64_t>(random() % 300), output = 2 + static_cast<int64_t>(random() % 120);
    r.prompt = repetitive_tokens(random, prompt + output, 2 + random() % 20);
    if (random() % 2) r.forced.assign(r.prompt.begin() + prompt, r.prompt.end());
    r.prompt.resize(static_cast<size_t>(prompt));
    // A prompt that was there before: shared blocks.
    if (!schedule.joins.empty() && random() % 4 == 0) {
      r.prompt = schedule.joins[random() % schedule.joins.size()].request.prompt;
    }
    r.max_tokens = static_cast<int32_t>(output);
    if (random() % 3 == 0) r.sampling = {.temperature = 1, .seed = random()};
    const bool cancels = random() % 6 == 0;
    schedule.joins.push_back({std::move(r), step, cancels ? step + static_cast<int64_t>(random() % 60) : -1});
    for (uint32_t n = random() % 3; n > 0; --n) {
      schedule.preemptions.emplace_back(step + static_cast<int64_t>(random() % 60), schedule.joins.size() - 1);
    }
  }
  return schedule;
}

struct Played {
  std::vector<Output> outputs;
  EngineMetrics metrics;
};

inline Played play(const EngineConfig& config, const Schedule& schedule, Device& where = device()) {
  const auto engine = make_engine(config, tiny_model(), where);
  Played run;
  run.outputs.resize(schedule.joins.size());
  std::vector<RequestId> ids(schedule.joins.size(), -1);
  size_t next = 0;
  for (int64_t step = 0; next < schedule.joins.size() || engine->impl_for_test().has_work(); ++step) {
    for (; next < schedule.joins.size() && schedule.joins[next].step <= step; ++next) {
      Request r = schedule.joins[next].request;
      report_to(run.outputs[next], r);
      ids[next] = submit(*engine, std::move(r));
    }
    for (size_t i = 0; i < next; ++i) {
      if (schedule.joins[i].cancel_step == step) engine->cancel(ids[i]);
    }
    for (const auto& [at, join] : schedule.preemptions) {
      if (at == step && join < next) engine->preempt_for_test(ids[join]);
    }
    engine->step();
    if (step % 37 == 0) {
      const Status status = engine->check_integrity();
      EXPECT_TRUE(status.ok()) << "step " << step << ": " << status.message();
      if (!status.ok()) break;
    }
  }
  const Status status = engine->check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
  run.metrics = engine->metrics();
  return run;
}

// The same tokens and ends, and the schedule met what it is meant to meet.
inline void expect_same_outputs(const Played& got, const Played& want) {
  ASSERT_EQ(got.outputs.size(), want.outputs.size());
  for (size_t i = 0; i < got.outputs.size(); ++i) {
    SCOPED_TRACE(fmt::format("request {}", i));
    EXPECT_EQ(got.outputs[i].tokens, want.outputs[i].tokens);
    EXPECT_EQ(got.outputs[i].finish, want.outputs[i].finish);
    EXPECT_EQ(got.outputs[i].finishes, 1);
    EXPECT_NE(got.outputs[i].finish, FinishReason::kError) << got.outputs[i].error.message();
  }
  EXPECT_EQ(got.metrics.steps, want.metrics.steps);
  EXPECT_GT(got.metrics.preemptions, 0);
  EXPECT_GT(got.metrics.cached_tokens, 0);
}

// Few blocks, so that all of them come and go.
inline EngineConfig tight_config() {
  EngineConfig c;
  c.max_sequences = 4;
  c.max_context = 512;
  c.top_k_blocks = 5;
  c.resident_ratio = 1.4;
  c.fetch_ratio = .2;
  c.prefill_chunk = 100;
  c.draft = "ngram";
  return c;
}

}  // namespace oasis::engine::testing
