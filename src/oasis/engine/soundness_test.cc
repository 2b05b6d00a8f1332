// Whatever becomes of requests, they leave nothing behind.
#include <thread>

#include "oasis/engine/engine_test_util.h"
#include "oasis/kv/testing/faulty_tier.h"

namespace oasis::engine {
namespace {

using testing::make_engine;
using testing::Output;

const model::Checkpoint& smallest_model() {
  static const model::Checkpoint checkpoint = [] {
    model::ModelConfig c = testing::tiny_config();
    c.layers = 2;
    c.hidden = 64;
    c.heads = 4;
    c.intermediate = 64;
    return model::make_random(c, 11);
  }();
  return checkpoint;
}

Request random_request(std::mt19937& random) {
  const auto pick = [&](int32_t a, int32_t b) { return std::uniform_int_distribution<int32_t>(a, b)(random); };
  Request r;
  const int32_t prompt = pick(0, 3) ? pick(1, 60) : pick(1, 300), output = pick(0, 3) ? pick(1, 25) : pick(1, 90);
  r.prompt = testing::repetitive_tokens(random, prompt, 8);
  if (pick(0, 3) == 0) r.prompt.assign(static_cast<size_t>(prompt), 17);  // shared with others
  r.max_tokens = output;
  if (pick(0, 1))
    r.sampling = {.temperature = 1, .top_k = pick(0, 50), .top_p = .95f, .repetition_penalty = 1.1f, .seed = random()};
  for (int32_t n = pick(0, 20); n > 0; --n) r.stop_tokens.push_back(pick(0, 299));
  if (pick(0, 3) == 0) r.forced = testing::repetitive_tokens(random, output, 8);
  return r;
}

struct Tally {
  int64_t finished = 0, failed = 0, cancelled = 0, preempted = 0;
};

// `requests` random requests, a thread that cancels some, preemptions, and a tier that fails now and then.
Tally run_randomly(const EngineConfig& base, uint32_t seed, size_t requests, bool staged, bool faults) {
  EngineConfig c = base;
  kv::testing::FaultyTier* tier = nullptr;
  c.wrap_tier = [&](std::unique_ptr<kv::Tier> inner, const kv::TierConfig& shape) -> std::unique_ptr<kv::Tier> {
    kv::testing::TierFaults f{.staged = staged};
    if (staged) f.batch_jitter_seconds = 2e-4, f.present_limit = 60;
    auto made = std::make_unique<kv::testing::FaultyTier>(std::move(inner), shape, f);
    tier = made.get();
    return made;
  };
  const auto engine = make_engine(c, smallest_model());
  std::mt19937 random(seed);
  std::vector<Output> out(requests);
  std::vector<RequestId> ids;
  std::atomic<RequestId> newest{0};
  std::atomic<bool> done{false};
  std::thread canceller([&] {
    std::mt19937 own(seed + 1);
    while (!done) {
      if (const RequestId last = newest; last > 0) {
        engine->cancel(std::max<RequestId>(1, last - static_cast<RequestId>(own() % 30)));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(own() % 4000));
    }
  });
  while (ids.size() < requests || engine->impl_for_test().has_work()) {
    while (ids.size() < requests && ids.size() < newest + random() % 8) {
      Request r = random_request(random);
      testing::report_to(out[ids.size()], r);
      ids.push_back(testing::submit(*engine, std::move(r)));
    }
    newest = ids.empty() ? 0 : ids.back();
    for (int n = 0; n < 6; ++n) engine->step();
    if (random() % 4 == 0) engine->preempt_for_test(ids[ids.size() - 1 - random() % std::min<size_t>(ids.size(), 12)]);
    if (faults && random() % 25 == 0) tier->fail_write_after(random() % 20);
    if (faults && staged && random() % 25 == 0) tier->fail_read_after(random() % 40);
    if (random() % 40 == 0) {
      const Status status = engine->check_integrity();
      EXPECT_TRUE(status.ok()) << status.message();
      if (!status.ok()) break;
    }
  }
  done = true;
  canceller.join();
  engine->run_until_idle();
  const Status status = engine->check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(tier->pins(), 0);
  Tally tally;
  for (const Output& o : out) {
    EXPECT_EQ(o.finishes, 1);
    if (o.finish == FinishReason::kError) {
      EXPECT_EQ(o.error.code(), StatusCode::kIo) << o.error.message();
    }
    tally.finished += o.finish == FinishReason::kLength || o.finish == FinishReason::kStop;
    tally.failed += o.finish == FinishReason::kError;
    tally.cancelled += o.finish == FinishReason::kCancelled;
  }
  const EngineMetrics m = engine->metrics();
  EXPECT_EQ(m.finished, tally.finished);
  EXPECT_EQ(m.failed, tally.failed);
  EXPECT_EQ(m.cancelled, tally.cancelled);
  EXPECT_LE(m.fast_bytes_peak, m.fast_bytes_limit);
  EXPECT_EQ(engine->impl_for_test().sequences.size(), 0u);
  tally.preempted = m.preemptions;
  return tally;
}

EngineConfig base(Attention attention, lookahead::FetchMode fetch) {
  EngineConfig c;
  c.max_sequences = 6;
  c.max_context = 400;
  c.attention = attention;
  c.fetch = fetch;
  c.top_k_blocks = 4;
  c.resident_ratio = 1.5;
  c.fetch_ratio = .3;
  c.draft = "ngram";
  c.accept_drafts = true;
  c.draft_tokens = 5;
  c.prefill_chunk = 48;
  return c;
}

TEST(Soundness, AThousandRequestsLeaveNothingBehind) {
  Tally all;
  const auto add = [&](const Tally& t) {
    all.finished += t.finished;
    all.failed += t.failed;
    all.cancelled += t.cancelled;
    all.preempted += t.preempted;
  };
  EngineConfig tight = base(Attention::kAuto, lookahead::FetchMode::kBounded);
  tight.fast_memory = 700 << 10;
  tight.capacity_memory = 1200 << 10;
  EngineConfig crowded = base(Attention::kDense, lookahead::FetchMode::kBounded);
  crowded.fast_memory = 700 << 10;
  add(run_randomly(base(Attention::kSparse, lookahead::FetchMode::kBounded), 1, 200, true, true));
  add(run_randomly(base(Attention::kSparse, lookahead::FetchMode::kExact), 2, 200, true, true));
  add(run_randomly(base(Attention::kAuto, lookahead::FetchMode::kAdaptive), 3, 200, false, true));
  add(run_randomly(tight, 4, 200, false, false));
  add(run_randomly(crowded, 5, 200, true, true));
  EXPECT_EQ(all.finished + all.failed + all.cancelled, 1000);
  // How many depends on when the cancels come: fewer finish where everything is slower.
  EXPECT_GT(all.finished, 100);
  EXPECT_GT(all.failed, 5);
  EXPECT_GT(all.cancelled, 20);
  EXPECT_GT(all.preempted, 10);
}

TEST(Soundness, AnEngineThatIsDestroyedInTheMiddleOfItsWorkEnds) {
  for (int steps = 0; steps < 40; steps += 3) {
    EngineConfig c = base(Attention::kSparse, lookahead::FetchMode::kBounded);
    c.wrap_tier = [&](std::unique_ptr<kv::Tier> inner, const kv::TierConfig& shape) -> std::unique_ptr<kv::Tier> {
      return std::make_unique<kv::testing::FaultyTier>(
          std::move(inner), shape,
          kv::testing::TierFaults{.staged = true, .batch_latency_seconds = .02, .present_limit = 1});
    };
    const auto engine = make_engine(c, smallest_model());
    std::mt19937 random(1);
    for (int i = 0; i < 4; ++i) {
      Request r = random_request(random);
      r.max_tokens = 90;
      testing::submit(*engine, std::move(r));
    }
    for (int i = 0; i < steps; ++i) engine->step();
  }
}

TEST(Soundness, SubmitAndCancelFromManyThreadsWhileTheEngineRuns) {
  const auto engine = make_engine(base(Attention::kAuto, lookahead::FetchMode::kExact), smallest_model());
  engine->start();
  std::atomic<int> ended{0};
  std::vector<std::thread> clients;
  for (uint32_t t = 0; t < 4; ++t) {
    clients.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 25; ++i) {
        Request r = random_request(random);
        r.on_event = [&](const Event& e) { ended += e.finish != FinishReason::kNone; };
        const RequestId id = testing::submit(*engine, std::move(r));
        if (random() % 4 == 0) engine->cancel(id);
        (void)engine->metrics();
        (void)engine->take_stats(id);
      }
    });
  }
  for (auto& c : clients) c.join();
  const auto begin = Clock::now();
  while (ended < 100 && seconds_since(begin) < 120) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  engine->stop();
  EXPECT_EQ(ended, 100);
  EXPECT_TRUE(engine->check_integrity().ok()) << engine->check_integrity().message();
}

}  // namespace
}  // namespace oasis::engine
