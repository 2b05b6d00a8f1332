// Who runs when, and what becomes of requests that do not fit, wait, are cancelled or pushed out.
#include "oasis/engine/engine_test_util.h"

namespace oasis::engine {
namespace {

using testing::make_engine;
using testing::Output;
using testing::random_tokens;

Request request(uint32_t seed, int64_t prompt, int32_t output) {
  std::mt19937 random(seed);
  Request r;
  r.prompt = random_tokens(random, prompt);
  r.max_tokens = output;
  return r;
}

EngineConfig dense(int64_t context, int32_t sequences) {
  EngineConfig c;
  c.max_sequences = sequences;
  c.max_context = context;
  c.attention = Attention::kDense;
  c.draft = "none";
  return c;
}

// Fast memory for exactly `pages` pages and the summaries of one sequence.
EngineConfig with_pages(EngineConfig c, int32_t pages) {
  c.fast_memory = 0;
  const auto roomy = plan_memory(testing::tiny_config(), c, {});
  OASIS_CHECK(roomy.ok(), "{}", roomy.status().message());
  c.fast_memory = static_cast<uint64_t>(roomy->map_bytes + pages * roomy->page_bytes +
                                        (roomy->core.max_blocks + 1) * roomy->summary_page_bytes);
  return c;
}

// Runs requests together and expects what each gives alone in an engine with room for everything.
void expect_as_if_alone(const EngineConfig& tight, const std::vector<Request>& requests, EngineMetrics* metrics) {
  EngineConfig roomy = tight;
  roomy.fast_memory = roomy.capacity_memory = 0;
  roomy.max_sequences = 1;
  const auto engine = make_engine(tight), alone = make_engine(roomy);
  std::vector<Output> got(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Request r = requests[i];
    testing::report_to(got[i], r);
    testing::submit(*engine, std::move(r));
  }
  for (int step = 0; engine->step(); ++step) ASSERT_LT(step, 20000) << "no end";
  for (size_t i = 0; i < requests.size(); ++i) {
    const Output want = testing::run(*alone, requests[i]);
    EXPECT_EQ(got[i].finish, want.finish) << got[i].error.message();
    EXPECT_EQ(got[i].tokens, want.tokens) << "request " << i;
  }
  const Status status = engine->check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
  *metrics = engine->metrics();
}

// case 6
TEST(Scheduler, SequencesThatPushEachOtherOutSayWhatTheyWouldHaveSaid) {
  const EngineConfig tight = with_pages(dense(80, 2), 7);
  ASSERT_EQ(make_engine(tight)->plan().core.pages, 7);
  EngineMetrics metrics;
  expect_as_if_alone(tight, {request(1, 34, 35), request(2, 34, 35)}, &metrics);
  EXPECT_GE(metrics.preemptions, 1);
}

TEST(Scheduler, WhoCameFirstIsNeverPushedOut) {
  const auto engine = make_engine(with_pages(dense(80, 2), 7));
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 4; ++i) ids.push_back(testing::submit(*engine, request(i, 34, 35)));
  engine->run_until_idle();
  EXPECT_EQ(engine->take_stats(ids[0])->preemptions, 0);
  EXPECT_GE(engine->take_stats(ids[1])->preemptions, 1);
}

TEST(Scheduler, SummaryPagesAreWaitedForToo) {
  // Pages for two sequences of eight blocks, nearly; summaries for one.
  const EngineConfig tight = with_pages(dense(128, 2), 15);
  EngineMetrics metrics;
  expect_as_if_alone(tight, {request(1, 20, 100), request(2, 20, 100)}, &metrics);
  EXPECT_GE(metrics.preemptions, 1);
}

TEST(Scheduler, WithTheWholeShareOthersWaitForAPromptAndTheirTokensStayTheSame) {
  EngineConfig c = dense(640, 2);
  c.prefill_chunk = 16;
  c.prefill_share = 1;
  const auto engine = make_engine(c);
  std::vector<int> order;  // who got a token
  for (int i = 0; i < 2; ++i) {
    Request r = request(static_cast<uint32_t>(i), i == 0 ? 20 : 400, 8);
    r.on_event = [&order, i](const Event& e) {
      for (size_t t = 0; t < e.tokens.size(); ++t) order.push_back(i);
    };
    ASSERT_TRUE(engine->submit(std::move(r)).ok());
  }
  engine->run_until_idle();
  // Each one's first token comes from its prompt; the first does not decode before the second's is there.
  ASSERT_EQ(order.size(), 16u);
  EXPECT_EQ(order[0], 0);
  EXPECT_EQ(order[1], 1);
  for (const double share : {.05, .5, .95, 1.}) {
    c.prefill_share = share;
    EngineMetrics metrics;
    expect_as_if_alone(c, {request(1, 20, 100), request(2, 400, 40), request(3, 200, 40)}, &metrics);
    expect_as_if_alone(with_pages(c, 45), {request(1, 20, 200), request(2, 400, 100)}, &metrics);
  }
}

TEST(Scheduler, TheSwitchToSparseWaitsForItsPages) {
  EngineConfig c = dense(640, 2);
  c.attention = Attention::kAuto;
  c.top_k_blocks = 6;
  c.resident_ratio = 1;
  c.fetch = lookahead::FetchMode::kExact;
  const int32_t slots = 6 + 3;
  EngineMetrics metrics;
  expect_as_if_alone(with_pages(c, 2 * slots - 1), {request(1, 150, 100), request(2, 60, 90)}, &metrics);
  EXPECT_GE(metrics.preemptions, 1);
}

TEST(Scheduler, ARequestWaitsForHomesThatAnotherStillHolds) {
  EngineConfig c = dense(160, 2);
  c.prefix_cache = false;
  const int64_t home = make_engine(c)->plan().home_bytes;
  c.capacity_memory = static_cast<uint64_t>(10 * home);
  EngineMetrics metrics;
  expect_as_if_alone(c, {request(1, 100, 50), request(2, 100, 50), request(3, 30, 120)}, &metrics);
}

TEST(Scheduler, CachedPrefixesGiveWayToRequests) {
  EngineConfig c = dense(160, 2);
  const int64_t home = make_engine(c)->plan().home_bytes;
  c.capacity_memory = static_cast<uint64_t>(10 * home);
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) requests.push_back(request(i, 90 + i, 60));
  EngineMetrics metrics;
  expect_as_if_alone(c, requests, &metrics);
  EXPECT_GT(metrics.homes.evictions, 0);
}

TEST(Scheduler, WhatCanNeverFitIsRefusedAtOnceWithTheLimit) {
  EngineConfig c = dense(160, 1);
  const int64_t home = make_engine(c)->plan().home_bytes;
  c.capacity_memory = static_cast<uint64_t>(5 * home);
  const auto engine = make_engine(c);
  const auto refused = [&](Request r) {
    const auto id = engine->submit(std::move(r));
    EXPECT_FALSE(id.ok());
    return id.status().message();
  };
  EXPECT_EQ(refused(request(1, 160, 1)), "a prompt of 160 tokens leaves no room in a context of 160 (--context)");
  EXPECT_EQ(refused(request(1, 90, 60)),
            "150 tokens need 9 blocks in the capacity tier, which holds 5: give it more (--capacity-memory, "
            "--capacity-file) or ask for less");
  EXPECT_EQ(refused(request(1, 0, 1)), "the prompt is empty: give at least one token");
  Request negative = request(1, 5, 5);
  negative.prompt[2] = -1;
  EXPECT_EQ(refused(negative), "prompt token -1: ids lie in 0 .. 299");
  Request bad = request(1, 5, 5);
  bad.stop_tokens = {300};
  EXPECT_EQ(refused(bad), "stop token 300: ids lie in 0 .. 299");
  // case 40: the next one is fine.
  EXPECT_EQ(testing::run(*engine, request(1, 40, 20)).finish, FinishReason::kLength);
}

TEST(Scheduler, TooLittleFastMemoryIsRefusedWithTheShortfall) {
  EngineConfig c = dense(640, 1);
  c.fast_memory = 100 << 10;
  const auto engine = Engine::create(testing::device(), testing::tiny_model(), nullptr, c);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(engine.status().message().find("short by"), std::string::npos) << engine.status().message();
}

// Bytes for R blocks hold R, one byte less holds R - 1; K is the least, 1.5 K the most.
TEST(Scheduler, ResidentBlocksAreWhatFastMemoryHoldsFromKToOneAndAHalfK) {
  EngineConfig c = dense(640, 1);
  c.attention = Attention::kSparse;
  c.top_k_blocks = 8;
  const auto plan = [&](double ratio, int64_t bytes) {
    c.resident_ratio = ratio;
    c.fast_memory = static_cast<uint64_t>(bytes);
    return plan_memory(testing::tiny_config(), c, {});
  };
  const auto residents = [&](int64_t bytes) {
    const auto made = plan(0, bytes);
    return made.ok() ? made->core.resident_blocks : -1;
  };
  int64_t last = 0;
  for (int32_t r = 8; r <= 12; ++r) {
    const int64_t bytes = plan(r / 8.0, 0)->fast_bytes();
    EXPECT_GT(bytes, last);
    EXPECT_EQ(residents(bytes), r);
    EXPECT_EQ(residents(bytes - 1), r == 8 ? -1 : r - 1);
    last = bytes;
  }
  EXPECT_EQ(residents(10 * last), 12);
  EXPECT_EQ(residents(0), 12);  // no bound
  const Status least = plan(0, plan(1, 0)->fast_bytes() - 1).status();
  EXPECT_NE(least.message().find("short by 1 B"), std::string::npos) << least.message();
}

// case 17
TEST(Scheduler, TheContextEndsARequestAndNoOther) {
  EngineConfig c = dense(96, 2);
  EngineMetrics metrics;
  expect_as_if_alone(c, {request(1, 60, 0), request(2, 8, 80)}, &metrics);
  const auto engine = make_engine(c);
  const Output out = testing::run(*engine, request(1, 60, 0));
  EXPECT_EQ(out.tokens.size(), 36u);
  EXPECT_EQ(out.finish, FinishReason::kLength);
}

// case 42
TEST(Scheduler, IgnoreEosGoesOnToMaxTokens) {
  model::ModelConfig config = testing::tiny_config();
  const auto engine = make_engine(dense(640, 1));
  const Output free = testing::run(*engine, request(3, 40, 64));
  config.eos_ids = {free.tokens[2]};  // the argmax at step 3
  const model::Checkpoint checkpoint = model::make_random(config, 7);
  const auto ending = make_engine(dense(640, 1), checkpoint);
  const Output stopped = testing::run(*ending, request(3, 40, 64));
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, std::vector(free.tokens.begin(), free.tokens.begin() + 3));
  Request r = request(3, 40, 64);
  r.ignore_eos = true;
  const Output whole = testing::run(*ending, r);
  EXPECT_EQ(whole.finish, FinishReason::kLength);
  EXPECT_EQ(whole.tokens, free.tokens);
}

TEST(Scheduler, StopTokensOfTheRequestEndIt) {
  const auto engine = make_engine(dense(640, 1));
  const Output free = testing::run(*engine, request(3, 40, 30));
  Request r = request(3, 40, 30);
  r.stop_tokens = {free.tokens[10], 299};
  const Output stopped = testing::run(*engine, r);
  const auto first = std::find(free.tokens.begin(), free.tokens.end(), free.tokens[10]);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, std::vector(free.tokens.begin(), first + 1));
}

TEST(Scheduler, CancellingEndsARequestInEveryState) {
  EngineConfig c = dense(640, 1);
  c.prefill_chunk = 16;
  const auto engine = make_engine(c);
  std::vector<Output> out(4);
  std::vector<RequestId> ids;
  for (size_t i = 0; i < out.size(); ++i) {
    Request r = request(static_cast<uint32_t>(i), 300, 100);
    testing::report_to(out[i], r);
    ids.push_back(testing::submit(*engine, std::move(r)));
  }
  engine->cancel(ids[3]);  // not even taken in
  engine->step();
  EXPECT_EQ(out[3].finish, FinishReason::kCancelled);
  engine->cancel(ids[0]);  // prefilling
  engine->cancel(ids[2]);  // waiting
  engine->step();
  EXPECT_EQ(out[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(out[2].finish, FinishReason::kCancelled);
  while (out[1].tokens.size() < 5) ASSERT_TRUE(engine->step());
  engine->preempt_for_test(ids[1]);
  engine->cancel(9999);
  engine->impl_for_test().decode();  // preempts and goes no further
  ASSERT_EQ(engine->impl_for_test().preempted.size(), 1u);
  engine->cancel(ids[1]);
  engine->run_until_idle();
  EXPECT_EQ(out[1].finish, FinishReason::kCancelled);
  for (const Output& o : out) EXPECT_EQ(o.finishes, 1);
  EXPECT_TRUE(engine->check_integrity().ok()) << engine->check_integrity().message();
  EXPECT_EQ(engine->metrics().cancelled, 4);
}

TEST(Scheduler, ACancelThatComesBetweenTwoStepsIsNeverLost) {
  EngineConfig c = dense(4000, 1);
  const auto engine = make_engine(c);
  engine->start();
  for (int i = 0; i < 50; ++i) {
    std::atomic<bool> ended{false};
    Request r = request(static_cast<uint32_t>(i), 5, 3900);
    r.on_event = [&](const Event& e) {
      if (e.finish != FinishReason::kNone) ended = true;
    };
    const RequestId id = testing::submit(*engine, std::move(r));
    engine->cancel(id);
    const auto begin = Clock::now();
    while (!ended) {
      std::this_thread::yield();
      ASSERT_LT(seconds_since(begin), 60) << "the cancel was lost";
    }
    EXPECT_LT(engine->take_stats(id)->output_tokens, 3000);
  }
  engine->stop();
  EXPECT_EQ(engine->metrics().finished, 0);
}

TEST(Scheduler, StatsOfARequestAreTakenOnce) {
  const auto engine = make_engine(dense(640, 1));
  Output out;
  Request r = request(1, 40, 20);
  testing::report_to(out, r);
  const RequestId id = testing::submit(*engine, std::move(r));
  EXPECT_FALSE(engine->take_stats(id).has_value());
  engine->run_until_idle();
  const auto stats = engine->take_stats(id);
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->prompt_tokens, 40);
  EXPECT_EQ(stats->output_tokens, 20);
  EXPECT_EQ(stats->steps, 19);  // the first token comes from prefill
  EXPECT_FALSE(engine->take_stats(id).has_value());
}

TEST(Scheduler, PrefillReportsItsProgress) {
  EngineConfig c = dense(640, 1);
  c.prefill_chunk = 64;
  const auto engine = make_engine(c);
  std::vector<int32_t> progress;
  Request r = request(1, 300, 3);
  r.on_event = [&](const Event& e) {
    EXPECT_EQ(e.prompt_tokens, 300);
    if (e.finish == FinishReason::kNone) progress.push_back(e.prefilled);
  };
  testing::submit(*engine, std::move(r));
  engine->run_until_idle();
  EXPECT_GT(progress.size(), 8u);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_EQ(progress.back(), 300);
}

TEST(Scheduler, MemoryInUseStaysWithinFastMemory) {
  for (const Attention attention : {Attention::kAuto, Attention::kDense, Attention::kSparse}) {
    EngineConfig c = dense(640, 4);
    c.attention = attention;
    c.top_k_blocks = 6;
    c.fast_memory = 5 << 20;
    const auto engine = make_engine(c);
    std::vector<Output> out(8);
    for (size_t i = 0; i < out.size(); ++i) {
      Request r = request(static_cast<uint32_t>(i), 50 + 70 * static_cast<int64_t>(i), 60);
      testing::report_to(out[i], r);
      testing::submit(*engine, std::move(r));
    }
    engine->run_until_idle();
    const auto m = engine->metrics();
    EXPECT_EQ(m.finished, 8);
    EXPECT_EQ(m.fast_bytes_limit, 5 << 20);
    EXPECT_LE(m.fast_bytes_peak, m.fast_bytes_limit);
    EXPECT_GT(m.fast_bytes_peak, m.fast_bytes_limit / 5);
  }
}

// case 61
TEST(Scheduler, TheLiveBytesAreThePlans) {
  EngineConfig c = dense(640, 3);
  c.attention = Attention::kSparse;
  c.top_k_blocks = 6;
  const auto plan = plan_memory(testing::tiny_config(), c, {});
  ASSERT_TRUE(plan.ok());
  const auto engine = make_engine(c);
  const auto& core = *engine->impl_for_test().core;
  EXPECT_NEAR(static_cast<double>(core.fast_bytes()), static_cast<double>(plan->fast_bytes()),
              .01 * static_cast<double>(plan->fast_bytes()));
  EXPECT_NEAR(static_cast<double>(engine->metrics().capacity_bytes), static_cast<double>(plan->capacity_memory_bytes),
              .01 * static_cast<double>(plan->capacity_memory_bytes));
}

}  // namespace
}  // namespace oasis::engine
