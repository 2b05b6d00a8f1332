// Prompts that begin alike share what was computed, and only what they may.
#include "oasis/engine/engine_test_util.h"
#include "oasis/kv/testing/faulty_tier.h"

namespace oasis::engine {
namespace {

using testing::make_engine;
using testing::Output;

EngineConfig config(Attention attention, lookahead::FetchMode fetch) {
  EngineConfig c;
  c.max_sequences = 2;
  c.max_context = 640;
  c.attention = attention;
  c.fetch = fetch;
  c.top_k_blocks = 6;
  c.resident_ratio = 1.5;
  c.draft = "none";
  return c;
}

struct Ran {
  Output output;
  RequestStats stats;
};

Ran run(Engine& engine, const std::vector<int32_t>& prompt, int32_t output, const std::vector<int32_t>& forced = {}) {
  Request r;
  r.prompt = prompt;
  r.max_tokens = output;
  r.forced = forced;
  Ran ran;
  testing::report_to(ran.output, r, true);
  const RequestId id = testing::submit(engine, std::move(r));
  engine.run_until_idle();
  ran.stats = *engine.take_stats(id);
  EXPECT_TRUE(engine.check_integrity().ok()) << engine.check_integrity().message();
  return ran;
}

std::vector<int32_t> prompt(int64_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  return testing::random_tokens(random, n);
}

TEST(Prefix, ThePromptOfLastTimeIsNotComputedAgain) {
  for (const Attention attention : {Attention::kAuto, Attention::kDense, Attention::kSparse}) {
    for (const kv::KvType type : {kv::KvType::kBf16, kv::KvType::kFp8E4M3}) {
      EngineConfig c = config(attention, lookahead::FetchMode::kExact);
      c.kv_type = type;
      const auto engine = make_engine(c);
      const auto tokens = prompt(200);
      const Ran first = run(*engine, tokens, 40), again = run(*engine, tokens, 40);
      EXPECT_EQ(first.stats.cached_tokens, 0);
      EXPECT_EQ(again.stats.cached_tokens, 192);
      EXPECT_EQ(again.output.tokens, first.output.tokens);
    }
  }
}

TEST(Prefix, AtLeastOneTokenIsComputed) {
  const auto engine = make_engine(config(Attention::kDense, lookahead::FetchMode::kBounded));
  const auto tokens = prompt(64);
  const Ran first = run(*engine, tokens, 5), again = run(*engine, tokens, 5);
  EXPECT_EQ(again.stats.cached_tokens, 48);
  EXPECT_EQ(again.output.tokens, first.output.tokens);
}

// case 7
TEST(Prefix, APromptMayBeShorterOrPartAnywhereFromWhatIsCached) {
  const auto engine = make_engine(config(Attention::kSparse, lookahead::FetchMode::kExact));
  const auto tokens = prompt(300);
  run(*engine, tokens, 5);
  for (int32_t length = 1; length <= 100; length += 9) {
    const Ran ran = run(*engine, std::vector(tokens.begin(), tokens.begin() + length), 3);
    EXPECT_EQ(ran.stats.cached_tokens, (length - 1) / 16 * 16);
  }
  auto parting = tokens;
  parting[100] ^= 1;
  EXPECT_EQ(run(*engine, parting, 3).stats.cached_tokens, 96);
}

TEST(Prefix, AnswersBecomePromptsOfTheNextTurn) {
  const auto engine = make_engine(config(Attention::kDense, lookahead::FetchMode::kBounded));
  auto tokens = prompt(100);
  const Ran turn = run(*engine, tokens, 60);
  tokens.insert(tokens.end(), turn.output.tokens.begin(), turn.output.tokens.end());
  EXPECT_EQ(run(*engine, tokens, 5).stats.cached_tokens, 144);  // of 160; the last token's K/V was never computed
}

TEST(Prefix, SparseBlocksServeOnlyThoseWhoMayHaveThem) {
  const auto cached_of_next_turn = [](Attention attention, lookahead::FetchMode fetch) {
    const auto engine = make_engine(config(attention, fetch));
    auto tokens = prompt(200);
    const Ran turn = run(*engine, tokens, 60);
    tokens.insert(tokens.end(), turn.output.tokens.begin(), turn.output.tokens.end());
    return run(*engine, tokens, 5).stats.cached_tokens;
  };
  constexpr int32_t kPrompt = 192, kAll = 256;  // K/V of 259 tokens
  EXPECT_EQ(cached_of_next_turn(Attention::kSparse, lookahead::FetchMode::kExact), kPrompt);
  EXPECT_EQ(cached_of_next_turn(Attention::kSparse, lookahead::FetchMode::kBounded), kAll);
  EXPECT_EQ(cached_of_next_turn(Attention::kDense, lookahead::FetchMode::kExact), kAll);
  EXPECT_EQ(cached_of_next_turn(Attention::kAuto, lookahead::FetchMode::kBounded), kAll);
}

TEST(Prefix, WithoutTheCacheNothingIsShared) {
  EngineConfig c = config(Attention::kDense, lookahead::FetchMode::kBounded);
  c.prefix_cache = false;
  const auto engine = make_engine(c);
  run(*engine, prompt(200), 5);
  EXPECT_EQ(run(*engine, prompt(200), 5).stats.cached_tokens, 0);
}

// case 9
TEST(Prefix, ABlockIsMatchedOnlyWhenItIsWhole) {
  EngineConfig c = config(Attention::kSparse, lookahead::FetchMode::kExact);
  c.prefill_chunk = 50;
  const auto want = run(*make_engine(c), prompt(200), 40).output.tokens;
  c.wrap_tier = [](std::unique_ptr<kv::Tier> tier, const kv::TierConfig& shape) -> std::unique_ptr<kv::Tier> {
    const kv::testing::TierFaults faults{.staged = true, .batch_latency_seconds = .003, .present_limit = 1};
    return std::make_unique<kv::testing::FaultyTier>(std::move(tier), shape, faults);
  };
  // The second comes at any moment of the first one's prefill or decoding.
  for (int wait = 0; wait < 30; wait += 3) {
    SCOPED_TRACE(wait);
    const auto engine = make_engine(c);
    std::vector<Output> out(2);
    for (Output& o : out) {
      Request r;
      r.prompt = prompt(200);
      r.max_tokens = 40;
      testing::report_to(o, r);
      testing::submit(*engine, std::move(r));
      for (int i = 0; i < wait; ++i) engine->step();
    }
    engine->run_until_idle();
    EXPECT_EQ(out[0].tokens, want);
    EXPECT_EQ(out[1].tokens, want);
    const Status status = engine->check_integrity();
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(Prefix, SequencesThatRunTogetherShareSummaryPages) {
  const auto engine = make_engine(config(Attention::kSparse, lookahead::FetchMode::kBounded));
  std::vector<Output> out(2);
  for (Output& o : out) {
    Request r;
    r.prompt = prompt(320);
    r.max_tokens = 60;
    testing::report_to(o, r);
    testing::submit(*engine, std::move(r));
  }
  while (out[1].tokens.size() < 5) engine->step();
  const auto& core = *engine->impl_for_test().core;
  const int32_t used = engine->plan().core.summary_pages - core.free_summary_pages();
  EXPECT_LE(used, 19 + 2 * 3);  // 19 blocks that both match, and what each has of its own
  engine->run_until_idle();
  EXPECT_TRUE(engine->check_integrity().ok()) << engine->check_integrity().message();
}

}  // namespace
}  // namespace oasis::engine
