// A tier that fails hits the sequences whose blocks it lost, with an error, and nobody else.
#include <cmath>
#include <limits>

#include "oasis/engine/engine_test_util.h"
#include "oasis/kv/testing/faulty_tier.h"

namespace oasis::engine {
namespace {

using testing::make_engine;
using testing::Output;

class Faults : public ::testing::Test {
 protected:
  // An engine over a tier that can be told to fail.
  void start(EngineConfig config, const kv::testing::TierFaults& faults) {
    config.max_context = 640;
    config.top_k_blocks = 4;
    config.draft = "ngram";
    config.wrap_tier = [&](std::unique_ptr<kv::Tier> tier, const kv::TierConfig& shape) -> std::unique_ptr<kv::Tier> {
      auto faulty = std::make_unique<kv::testing::FaultyTier>(std::move(tier), shape, faults);
      tier_ = faulty.get();
      return faulty;
    };
    engine_ = make_engine(config);
  }

  RequestId submit(Output& out, uint32_t seed, int64_t prompt, int32_t output) {
    std::mt19937 random(seed);
    Request r;
    r.prompt = testing::random_tokens(random, prompt);
    r.forced = testing::random_tokens(random, output);
    r.max_tokens = output;
    testing::report_to(out, r);
    return testing::submit(*engine_, std::move(r));
  }

  void step_until(const Output& out, size_t tokens) {
    while (out.tokens.size() < tokens) ASSERT_TRUE(engine_->step());
  }

  void expect_nothing_left() {
    const Status status = engine_->check_integrity();
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(tier_->pins(), 0);
  }

  std::unique_ptr<Engine> engine_;
  kv::testing::FaultyTier* tier_ = nullptr;
};

TEST_F(Faults, AFailedWriteWhileDecodingFailsItsSequenceAlone) {
  start({.max_sequences = 2, .attention = Attention::kSparse}, {});
  Output a, b;
  submit(a, 1, 100, 60);
  submit(b, 2, 101, 60);
  step_until(b, 3);
  tier_->fail_write_after(0);  // a block of the first to seal one
  engine_->run_until_idle();
  EXPECT_EQ((a.finish == FinishReason::kError) + (b.finish == FinishReason::kError), 1);
  const Output& failed = a.finish == FinishReason::kError ? a : b;
  const Output& fine = a.finish == FinishReason::kError ? b : a;
  EXPECT_EQ(failed.error.code(), StatusCode::kIo);
  EXPECT_EQ(failed.finishes, 1);
  EXPECT_EQ(fine.finish, FinishReason::kLength);
  EXPECT_EQ(fine.tokens.size(), 60u);
  expect_nothing_left();
}

TEST_F(Faults, AFailedWriteOfAPromptFailsItsRequestAlone) {
  start({.max_sequences = 2, .attention = Attention::kSparse}, {});
  Output a, b;
  submit(a, 1, 100, 30);
  step_until(a, 3);
  tier_->fail_write_after(2);
  submit(b, 2, 300, 30);
  engine_->run_until_idle();
  EXPECT_EQ(a.finish, FinishReason::kLength) << a.error.message();
  EXPECT_EQ(b.finish, FinishReason::kError);
  EXPECT_EQ(b.error.code(), StatusCode::kIo);
  EXPECT_TRUE(b.tokens.empty());
  expect_nothing_left();
}

TEST_F(Faults, AFailedReadWhileDecodingFailsItsSequenceAlone) {
  for (const auto fetch : {lookahead::FetchMode::kBounded, lookahead::FetchMode::kExact}) {
    start({.max_sequences = 2,
           .attention = Attention::kSparse,
           .resident_ratio = 1,
           .fetch = fetch,
           .fetch_ratio = 1,
           .prefix_cache = false},
          {.staged = true, .present_limit = 4});
    Output a, b;
    submit(a, 1, 300, 60);
    submit(b, 2, 300, 60);
    step_until(b, 3);
    tier_->fail_read_after(5);
    engine_->run_until_idle();
    EXPECT_EQ((a.finish == FinishReason::kError) + (b.finish == FinishReason::kError), 1);
    const Output& failed = a.finish == FinishReason::kError ? a : b;
    const Output& fine = a.finish == FinishReason::kError ? b : a;
    EXPECT_EQ(failed.error.code(), StatusCode::kIo);
    EXPECT_EQ(fine.tokens.size(), 60u);
    expect_nothing_left();
  }
}

TEST_F(Faults, AFailedReadWhileResumingFailsItsSequenceAlone) {
  start({.max_sequences = 2, .attention = Attention::kSparse}, {.staged = true, .present_limit = 1});
  Output a, b;
  const RequestId id = submit(a, 1, 300, 60);
  submit(b, 2, 100, 60);
  step_until(b, 3);
  tier_->evict_unpinned();
  engine_->preempt_for_test(id);
  engine_->impl_for_test().decode();
  tier_->fail_read_after(0);
  engine_->run_until_idle();
  EXPECT_EQ(a.finish, FinishReason::kError);
  EXPECT_EQ(b.finish, FinishReason::kLength) << b.error.message();
  expect_nothing_left();
}

// The index of a sequence that left is soon another's, which must not inherit its reads.
TEST_F(Faults, AReadThatFailsAfterItsSequenceLeftHitsNobody) {
  start({.max_sequences = 2,
         .attention = Attention::kAuto,
         .resident_ratio = 1,
         .fetch = lookahead::FetchMode::kExact,
         .prefill_chunk = 640,
         .prefix_cache = false},
        {.staged = true, .batch_latency_seconds = .05, .present_limit = 1});
  Output a, b, c;
  const RequestId id = submit(a, 1, 300, 60);
  submit(b, 2, 20, 60);  // dense: reads nothing, and leaves pages for a third
  step_until(b, 3);
  const int64_t admitted = engine_->impl_for_test().core->stats().admitted;
  while (engine_->impl_for_test().core->stats().admitted == admitted) ASSERT_TRUE(engine_->step());
  tier_->fail_read_after(0);  // of a's prefetch, which is on its way
  engine_->cancel(id);
  submit(c, 3, 30, 20);
  engine_->run_until_idle();
  EXPECT_EQ(a.finish, FinishReason::kCancelled);
  EXPECT_EQ(b.finish, FinishReason::kLength) << b.error.message();
  EXPECT_EQ(c.finish, FinishReason::kLength) << c.error.message();
  expect_nothing_left();
}

// case 32: a damaged block of a prefix is a miss, and its tokens are computed again.
TEST_F(Faults, AFailedReadOfACachedPrefixIsAMiss) {
  start({.max_sequences = 1, .attention = Attention::kDense, .fetch = lookahead::FetchMode::kExact},
        {.staged = true, .present_limit = 1});
  Output first, second, third;
  submit(first, 1, 200, 20);
  engine_->run_until_idle();
  tier_->fail_read_after(4);
  submit(second, 1, 200, 20);
  engine_->run_until_idle();
  EXPECT_EQ(second.finish, FinishReason::kLength) << second.error.message();
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(second.finishes, 1);
  submit(third, 1, 200, 20);
  engine_->run_until_idle();
  EXPECT_EQ(third.tokens, first.tokens);
  expect_nothing_left();
}

TEST(BrokenModel, LogitsThatAreNoNumbersAreAnError) {
  model::Checkpoint checkpoint = model::make_random(testing::tiny_config(), 7);
  for (const bool decode : {false, true}) {
    // The embedding of one token is NaN: the prompt's, or one that is forced into the output.
    auto* embed = static_cast<bf16*>(const_cast<void*>(checkpoint.weights().embed.data));
    const int64_t hidden = checkpoint.config().hidden;
    std::fill_n(embed + 299 * hidden, hidden, bf16{0x7fff});
    EngineConfig c;
    c.max_context = 640;
    c.draft = "ngram";
    const auto engine = make_engine(c, checkpoint);
    Request r;
    r.prompt = {1, 2, 3, decode ? 4 : 299};
    if (decode) r.forced = {5, 6, 299};
    r.max_tokens = 20;
    const Output out = testing::run(*engine, r);
    EXPECT_EQ(out.finish, FinishReason::kError);
    EXPECT_EQ(out.error.code(), StatusCode::kInternal);
    EXPECT_EQ(out.error.message(),
              "no logit is a number: the model's weights are damaged, or its activations overflowed");
    EXPECT_EQ(out.tokens.size(), decode ? 3u : 0u);
    for (const int32_t t : out.tokens) EXPECT_GE(t, 0);
  }
}

}  // namespace
}  // namespace oasis::engine
