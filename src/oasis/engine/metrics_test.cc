// What an operator is shown of each sequence, and what is refused before it waits.
#include <gtest/gtest.h>

#include "oasis/engine/engine_test_util.h"

namespace oasis::engine {
namespace {

using namespace testing;

Request request(int32_t prompt_tokens, int32_t max_tokens) {
  std::mt19937 random(3);
  return {.prompt = random_tokens(random, prompt_tokens), .max_tokens = max_tokens, .ignore_eos = true};
}

TEST(Metrics, EverySequenceIsShownWithItsState) {
  auto engine =
      make_engine({.max_sequences = 1, .attention = Attention::kSparse, .top_k_blocks = 4, .resident_ratio = 1});
  const RequestId first = submit(*engine, request(200, 20)), second = submit(*engine, request(50, 2));
  EXPECT_EQ(engine->metrics().waiting, 2);  // before any step
  while (sequence_of(*engine, first) == nullptr || sequence_of(*engine, first)->state != SequenceState::kRunning) {
    engine->step();
  }
  const EngineMetrics m = engine->metrics();
  ASSERT_EQ(m.sequences.size(), 2U);
  const SequenceInfo &running = m.sequences[0], &waiting = m.sequences[1];
  EXPECT_EQ(running.id, first);
  EXPECT_EQ(running.state, "running");
  EXPECT_TRUE(running.sparse);
  EXPECT_EQ(running.prefilled, 200);
  EXPECT_GE(running.output_tokens, 1);
  EXPECT_EQ(running.total_blocks, 12);
  EXPECT_EQ(running.resident_blocks, 4);
  EXPECT_EQ(waiting.id, second);
  EXPECT_EQ(waiting.state, "waiting");
  EXPECT_EQ(waiting.prefilled, 0);
  EXPECT_GT(m.fast_bytes_used, 0);
  EXPECT_LE(m.fast_bytes_used, m.fast_bytes_limit);
  engine->run_until_idle();
  EXPECT_TRUE(engine->metrics().sequences.empty());
  EXPECT_EQ(engine->metrics().waiting, 0);
}

TEST(Metrics, EventsTellWhatTheCacheGave) {
  auto engine = make_engine({.max_sequences = 1});
  run(*engine, request(100, 2));
  int32_t cached = -1;
  Request again = request(100, 2);
  again.on_event = [&](const Event& e) { cached = e.cached_tokens; };
  run(*engine, std::move(again));
  EXPECT_EQ(cached, 96);
}

}  // namespace
}  // namespace oasis::engine
