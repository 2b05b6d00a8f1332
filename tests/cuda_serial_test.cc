// Captured steps on a GPU against serial mode, bit for bit, through joins, ends, cancels, preemptions and shared
// prefixes; what is at home, what is given back. Skipped where no GPU is found.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "oasis/base/numeric.h"
#include "oasis/draft/testing/head_files.h"
#include "oasis/kernels/backend_test_util.h"
#include "schedule.h"

namespace oasis {
namespace {

using engine::Attention;
using engine::EngineConfig;
using engine::Request;
using engine::testing::expect_same_outputs;
using engine::testing::Output;
using engine::testing::play;
using engine::testing::Played;
using engine::testing::random_schedule;
using engine::testing::Schedule;
using engine::testing::tight_config;
using lookahead::FetchMode;

constexpr float kMargin = 0.15f;  // logits: below it rounding may decide

Device& gpu() { return kernels::test_device(Backend::kCuda); }

// The margin between the best logit and the next.
float margin_of(std::vector<float> z) {
  std::nth_element(z.begin(), z.begin() + 1, z.end(), std::greater<>());
  return z[0] - z[1];
}

class CudaEngine : public testing::Test {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(Backend::kCuda); }
};

EngineConfig tight() {
  EngineConfig c = tight_config();
  c.attention = Attention::kSparse;
  return c;
}

// Serial mode launches the same kernels one by one and joins every transfer, so not a bit may differ. What joins, ends,
// is cancelled, preempted and shared is in the schedule; the integrity is checked on the way.
void expect_equal_to_serial(EngineConfig config, uint32_t seed, int64_t steps = 500) {
  const Schedule schedule = random_schedule(seed, steps);
  config.serial = true;
  const Played want = play(config, schedule, gpu());
  config.serial = false;
  const Played got = play(config, schedule, gpu());
  expect_same_outputs(got, want);
  EXPECT_EQ(got.metrics.core.misses, want.metrics.core.misses);
  EXPECT_EQ(got.metrics.core.admitted, want.metrics.core.admitted);
  if (config.attention != Attention::kDense) {
    EXPECT_GT(got.metrics.core.admitted, 0);
  }
  if (config.accept_drafts) {
    EXPECT_GT(got.metrics.accepted, 0);
  }
}

// case 4
TEST_F(CudaEngine, CapturedSparseStepsGiveTheTokensOfSerialMode) { expect_equal_to_serial(tight(), 1); }

TEST_F(CudaEngine, CapturedStepsThatAcceptDraftsGiveTheTokensOfSerialMode) {
  EngineConfig c = tight();
  c.accept_drafts = true;
  c.draft_tokens = 8;
  expect_equal_to_serial(c, 2);
}

TEST_F(CudaEngine, CapturedStepsThroughTheSwitchToSparseGiveTheTokensOfSerialMode) {
  EngineConfig c = tight();
  c.attention = Attention::kAuto;
  c.accept_drafts = true;
  c.draft_tokens = 3;
  expect_equal_to_serial(c, 3);
}

// Pages for about two of four sequences: they push each other out. case 6
TEST_F(CudaEngine, CapturedDenseStepsUnderMemoryPressureGiveTheTokensOfSerialMode) {
  EngineConfig c = tight();
  c.attention = Attention::kDense;
  c.fast_memory = 3 << 20;
  expect_equal_to_serial(c, 4);
}

// Batches of more sequences than the sizes that graphs are made for.
TEST_F(CudaEngine, CapturedStepsOfManySequencesGiveTheTokensOfSerialMode) {
  EngineConfig c = tight();
  c.max_sequences = 19;
  c.draft = "none";
  Schedule schedule = random_schedule(5, 2000);
  for (size_t i = 0; i < schedule.joins.size(); ++i) schedule.joins[i].step = static_cast<int64_t>(i) * 3;
  c.serial = true;
  const Played want = play(c, schedule, gpu());
  c.serial = false;
  const Played got = play(c, schedule, gpu());
  for (size_t i = 0; i < schedule.joins.size(); ++i) EXPECT_EQ(got.outputs[i].tokens, want.outputs[i].tokens) << i;
}

TEST_F(CudaEngine, CapturedStepsWithADraftHeadGiveTheTokensOfSerialMode) {
  const draft::HeadFiles::Folder folder("cuda_serial");
  const model::ModelConfig model = engine::testing::tiny_config();
  draft::random_head({.hidden = model.hidden, .target_hidden = model.hidden, .vocab = static_cast<int>(model.vocab)}, 3)
      .write(folder.path());
  EngineConfig c = tight();
  c.attention = Attention::kAuto;
  c.accept_drafts = true;
  c.draft = "auto:" + folder.path();
  expect_equal_to_serial(c, 6, 300);
}

// What its transfers have time for decides: nothing but the tokens may be lost.
TEST_F(CudaEngine, AdaptiveRunsAreSound) {
  EngineConfig c = tight();
  c.fetch = FetchMode::kAdaptive;
  c.accept_drafts = true;
  const Played run = play(c, random_schedule(7, 500), gpu());
  for (const Output& out : run.outputs) {
    EXPECT_EQ(out.finishes, 1);
    EXPECT_NE(out.finish, engine::FinishReason::kError) << out.error.message();
  }
  EXPECT_GT(run.metrics.core.admitted, 0);
}

// Steps that need the host inside run op by op.
TEST_F(CudaEngine, ExactRunsAreSoundThroughPreemptionsAndJoins) {
  EngineConfig c = tight();
  c.fetch = FetchMode::kExact;
  c.accept_drafts = true;
  c.resident_ratio = 2;
  expect_equal_to_serial(c, 8, 200);
}

Request request(uint32_t seed, int64_t prompt, int32_t output) {
  std::mt19937 random(seed);
  Request r;
  r.prompt = engine::testing::repetitive_tokens(random, prompt, 12);
  r.max_tokens = output;
  return r;
}

// Home records of a request's sealed blocks, [block, layer] parts and [block] summaries, taken at its last token.
struct Homes {
  std::vector<std::vector<std::byte>> parts, meta;
  int64_t blocks = 0;
};

Homes homes_after(const EngineConfig& config, Request r, Device& where) {
  const auto engine = engine::testing::make_engine(config, engine::testing::tiny_model(), where);
  auto& impl = engine->impl_for_test();
  Homes out;
  r.on_event = [&](const engine::Event& e) {
    if (e.tokens.empty()) return;
    out = {};
    const lookahead::Sequence& q = impl.core->sequence(0);
    const kv::KvShape& shape = impl.plan.core.shape;
    kv::Tier& tier = impl.homes->tier();
    out.blocks = q.sealed;
    for (const kv::HomeId home : q.homes) {
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        const std::byte* part = tier.acquire({home, layer});
        ASSERT_NE(part, nullptr) << "layer " << layer;
        out.parts.emplace_back(part, part + shape.part_bytes());
        tier.release({home, layer});
      }
      out.meta.emplace_back(tier.meta(home), tier.meta(home) + shape.summary_page_bytes());
    }
  };
  engine::testing::submit(*engine, std::move(r));
  engine->run_until_idle();
  return out;
}

// Of bf16 values: the largest distance, relative to 1.
float distance(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  float most = 0;
  for (size_t i = 0; i + 1 < a.size(); i += 2) {
    bf16 x, y;
    std::memcpy(&x, &a[i], 2), std::memcpy(&y, &b[i], 2);
    most = std::max(most, std::abs(to_float(x) - to_float(y)) / std::max(1.0f, std::abs(to_float(y))));
  }
  return most;
}

// case 4: what a step seals is at home in every layer, before a graph has ever seen a block sealed and after.
TEST_F(CudaEngine, SealedBlocksAreHomeBitForBitAsInSerialModeAndAsOnTheCpu) {
  for (const Attention attention : {Attention::kDense, Attention::kSparse}) {
    EngineConfig c = tight();
    c.attention = attention;
    c.top_k_blocks = 32;  // everything is read: the CPU's values are the same up to rounding
    c.resident_ratio = 1;
    c.prefix_cache = false;
    Request r = request(9, 100, 200);
    std::mt19937 random(9);
    r.forced = engine::testing::random_tokens(random, 200);
    const Homes captured = homes_after(c, r, gpu()), cpu = homes_after(c, r, engine::testing::device());
    c.serial = true;
    const Homes serial = homes_after(c, r, gpu());
    ASSERT_GE(captured.blocks, 18);
    ASSERT_EQ(captured.blocks, cpu.blocks);
    EXPECT_TRUE(captured.parts == serial.parts);
    EXPECT_TRUE(captured.meta == serial.meta);
    const int32_t layers = engine::testing::tiny_config().layers;
    for (size_t i = 0; i < cpu.parts.size(); ++i) {
      EXPECT_LT(distance(captured.parts[i], cpu.parts[i]), .1f)
          << "block " << i / static_cast<size_t>(layers) << " layer " << i % static_cast<size_t>(layers);
    }
    for (size_t i = 0; i < cpu.meta.size(); ++i) EXPECT_LT(distance(captured.meta[i], cpu.meta[i]), .1f) << i;
  }
}

TEST_F(CudaEngine, PreemptionDoesNotChangeABitOfDenseOrSparseOutput) {
  for (const Attention attention : {Attention::kDense, Attention::kSparse}) {
    EngineConfig c = tight();
    c.attention = attention;
    const auto a = engine::testing::make_engine(c, engine::testing::tiny_model(), gpu());
    const auto b = engine::testing::make_engine(c, engine::testing::tiny_model(), gpu());
    const Output want = engine::testing::run(*a, request(10, 200, 150), true);
    Output got;
    Request r = request(10, 200, 150);
    engine::testing::report_to(got, r, true);
    const auto id = engine::testing::submit(*b, std::move(r));
    for (int64_t step = 0; b->step(); ++step) {
      if (step % 7 == 3) b->preempt_for_test(id);
    }
    EXPECT_GE(b->metrics().preemptions, 15);
    EXPECT_TRUE(got.logits == want.logits);
    EXPECT_TRUE(b->check_integrity().ok());
  }
}

// The first request's blocks, those that its steps sealed among them, are the second's prefix.
TEST_F(CudaEngine, APrefixThatStepsSealedIsHit) {
  EngineConfig c = tight();
  c.attention = Attention::kDense;
  const auto shared = engine::testing::make_engine(c, engine::testing::tiny_model(), gpu());
  const auto fresh = engine::testing::make_engine(c, engine::testing::tiny_model(), gpu());
  Request first = request(11, 150, 120);
  const Output said = engine::testing::run(*shared, first);
  Request second = request(12, 1, 60);
  second.prompt = first.prompt;
  second.prompt.insert(second.prompt.end(), said.tokens.begin(), said.tokens.end());
  const Output got = engine::testing::run(*shared, second, true), want = engine::testing::run(*fresh, second, true);
  EXPECT_GE(shared->metrics().cached_tokens, 256);
  EXPECT_EQ(fresh->metrics().cached_tokens, 0);
  // Prefill and steps are other kernels, so the shared keys differ by a rounding.
  for (size_t i = 0; i < want.tokens.size() && margin_of(want.logits[i]) >= kMargin; ++i) {
    ASSERT_EQ(got.tokens[i], want.tokens[i]) << i;
  }
}

TEST_F(CudaEngine, SamplingGivesTheSameTokensForTheSameSeedAndOthersForAnother) {
  const auto tokens = [](uint64_t seed) {
    Request r = request(13, 120, 100);
    r.sampling = {.temperature = 1, .seed = seed};
    const auto engine = engine::testing::make_engine(tight(), engine::testing::tiny_model(), gpu());
    return engine::testing::run(*engine, std::move(r)).tokens;
  };
  const auto once = tokens(1);
  ASSERT_EQ(once.size(), 100u);
  EXPECT_EQ(tokens(1), once);
  EXPECT_NE(tokens(2), once);
}

// Drawn on the host from logits that differ from the CPU's by roundings: nearly always the same token.
TEST_F(CudaEngine, SampledTokensFollowTheCpusDistribution) {
  const auto on = [](Device& device) {
    const auto engine = engine::testing::make_engine(tight(), engine::testing::tiny_model(), device);
    std::vector<int32_t> first;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      Request r = request(14, 40, 2);
      r.sampling = {.temperature = 1, .seed = seed};
      first.push_back(engine::testing::run(*engine, std::move(r)).tokens[1]);
    }
    return first;
  };
  const auto got = on(gpu()), want = on(engine::testing::device());
  int same = 0;
  for (size_t i = 0; i < got.size(); ++i) same += got[i] == want[i];
  EXPECT_GE(same, 140);  // the second token follows another first one now and then
  EXPECT_GE(std::set<int32_t>(got.begin(), got.end()).size(), 20u);
}

TEST_F(CudaEngine, ACancelledRequestGivesEverythingBackInMidRun) {
  EngineConfig c = tight();
  const auto engine = engine::testing::make_engine(c, engine::testing::tiny_model(), gpu());
  std::vector<Output> outputs(3);
  std::vector<engine::RequestId> ids;
  for (uint32_t i = 0; i < 3; ++i) {
    Request r = request(20 + i, 200 + 50 * i, 100);
    engine::testing::report_to(outputs[i], r);
    ids.push_back(engine::testing::submit(*engine, std::move(r)));
  }
  for (int step = 0; step < 40; ++step) engine->step();
  engine->cancel(ids[0]);
  engine->cancel(ids[2]);
  engine->step();
  EXPECT_EQ(outputs[0].finish, engine::FinishReason::kCancelled);
  EXPECT_EQ(outputs[2].finish, engine::FinishReason::kCancelled);
  const Status during = engine->check_integrity();
  EXPECT_TRUE(during.ok()) << during.message();
  engine->run_until_idle();
  const Status after = engine->check_integrity();
  EXPECT_TRUE(after.ok()) << after.message();
  EXPECT_EQ(outputs[1].tokens.size(), 100u);
  // Who is left is not touched by who left.
  const auto alone = engine::testing::make_engine(c, engine::testing::tiny_model(), gpu());
  const Output want = engine::testing::run(*alone, request(21, 250, 100), true);
  for (size_t i = 0; i < want.tokens.size() && margin_of(want.logits[i]) >= kMargin; ++i) {
    ASSERT_EQ(outputs[1].tokens[i], want.tokens[i]) << i;
  }
}

// Every block-head that was admitted was copied, but for those of the last step, which nobody waits for.
TEST_F(CudaEngine, WhatWasAdmittedWasCopied) {
  const auto engine = engine::testing::make_engine(tight(), engine::testing::tiny_model(), gpu());
  engine::testing::run(*engine, request(15, 400, 100));
  const lookahead::CoreStats core = engine->metrics().core;
  const model::ModelConfig tiny = engine::testing::tiny_config();
  EXPECT_GT(core.admitted, 100);
  EXPECT_LE(core.blocks, core.admitted);
  EXPECT_GE(core.blocks, core.admitted - int64_t{tiny.layers} * tiny.kv_heads * 2);  // C = 1 and a step of slack
  EXPECT_EQ(core.bytes, core.blocks * engine->plan().core.shape.block_head_bytes());
  EXPECT_EQ(core.misses, core.admitted + core.refused_cap + core.refused_absent);
}

TEST_F(CudaEngine, AnEngineThatDoesNotFitIsRefusedAndTheNextOneRuns) {
  std::vector<Buffer> taken;  // nearly the whole GPU
  for (size_t bytes = size_t{64} << 30; bytes >= size_t{64} << 20; bytes /= 2) {
    for (auto buffer = gpu().allocate(bytes); buffer.ok(); buffer = gpu().allocate(bytes)) {
      taken.push_back(std::move(*buffer));
    }
  }
  EngineConfig large = tight();  // pools of 400 MB
  large.attention = Attention::kDense;
  large.max_sequences = 64;
  large.max_context = 4096;
  const auto refused = engine::Engine::create(gpu(), engine::testing::tiny_model(), nullptr, large);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted) << refused.status().message();
  taken.clear();
  const auto next = engine::testing::make_engine(tight(), engine::testing::tiny_model(), gpu());
  EXPECT_EQ(engine::testing::run(*next, request(16, 100, 20)).tokens.size(), 20u);
}

TEST_F(CudaEngine, DeviceMemoryBoundsTheFastTier) {
  EngineConfig large = tight();  // pools of 400 MB
  large.fast_memory = 0;
  large.attention = Attention::kDense;
  large.max_sequences = 64;
  large.max_context = 4096;
  const auto in_use = static_cast<uint64_t>(gpu().memory_in_use());
  large.device_memory = in_use + (uint64_t{960} << 20);
  const auto engine = engine::testing::make_engine(large, engine::testing::tiny_model(), gpu());
  EXPECT_LT(engine->plan().fast_bytes(), int64_t{192} << 20);
  EXPECT_GT(engine->plan().fast_bytes(), int64_t{64} << 20);
  EXPECT_LE(static_cast<uint64_t>(gpu().memory_in_use()), large.device_memory);
  large.device_memory = in_use;
  const auto refused = engine::Engine::create(gpu(), engine::testing::tiny_model(), nullptr, large);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("--device-memory"));
}

}  // namespace
}  // namespace oasis
