// The pipeline under random delays, poison, joins, leaves and preemptions against its serial mode: what is overlapped
// must not be seen in the tokens. OASIS_HAZARD_STEPS sets how many engine steps each schedule runs (default 500).
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "oasis/draft/testing/head_files.h"
#include "oasis/kv/testing/faulty_tier.h"
#include "schedule.h"

namespace oasis {
namespace {

using engine::EngineConfig;
using engine::testing::expect_same_outputs;
using engine::testing::Output;
using engine::testing::play;
using engine::testing::Played;
using engine::testing::random_schedule;
using engine::testing::Schedule;
using engine::testing::tight_config;

int64_t steps_to_run() {
  const char* set = std::getenv("OASIS_HAZARD_STEPS");
  return set ? std::atoll(set) : 500;
}

// Short sleeps at all stages, most often none; the transfer's are longer and come more often.
std::function<void(lookahead::Stage, int32_t, int64_t)> random_delays(uint32_t seed) {
  return [seed](lookahead::Stage stage, int32_t layer, int64_t step) {
    std::seed_seq values{seed, static_cast<uint32_t>(stage), static_cast<uint32_t>(layer), static_cast<uint32_t>(step)};
    uint32_t drawn[2];
    values.generate(drawn, drawn + 2);
    const bool transfer = stage == lookahead::Stage::kTransfer;
    if (drawn[0] % (transfer ? 8 : 64) != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(drawn[1] % (transfer ? 1500 : 400)));
  };
}

void expect_equal_to_serial(EngineConfig config, uint32_t seed) {
  const Schedule schedule = random_schedule(seed, steps_to_run());
  config.hooks.poison = true;
  config.serial = true;
  const Played want = play(config, schedule);
  config.serial = false;
  config.hooks.delay = random_delays(seed);
  const Played got = play(config, schedule);
  expect_same_outputs(got, want);
  EXPECT_GE(got.metrics.steps, steps_to_run() * 3 / 4);
  if (config.accept_drafts) {
    EXPECT_GT(got.metrics.accepted, 0);
  }
  EXPECT_GT(got.metrics.core.blocks, 0);
}

EngineConfig accepting() {
  EngineConfig c = tight_config();
  c.accept_drafts = true;
  c.draft_tokens = 8;
  return c;
}

TEST(Hazards, BoundedTokensAreThoseOfSerialMode) {
  EngineConfig c = accepting();
  c.attention = engine::Attention::kSparse;
  expect_equal_to_serial(c, 1);
}

TEST(Hazards, TokensFromFp8AreThoseOfSerialMode) {
  EngineConfig c = accepting();
  c.attention = engine::Attention::kSparse;
  c.kv_type = kv::KvType::kFp8E4M3;
  expect_equal_to_serial(c, 11);
}

TEST(Hazards, LookaheadTokensAreThoseOfSerialMode) {
  EngineConfig c = tight_config();
  c.attention = engine::Attention::kSparse;
  expect_equal_to_serial(c, 2);
}

TEST(Hazards, TokensThroughTheSwitchToSparseAreThoseOfSerialMode) { expect_equal_to_serial(accepting(), 3); }

TEST(Hazards, ExactTokensAreThoseOfSerialMode) {
  EngineConfig c = accepting();
  c.fetch = lookahead::FetchMode::kExact;
  c.resident_ratio = 2;
  expect_equal_to_serial(c, 4);
}

TEST(Hazards, ExactTokensFromASlowStagedTierAreThoseOfSerialMode) {
  EngineConfig c = accepting();
  c.attention = engine::Attention::kSparse;
  c.fetch = lookahead::FetchMode::kExact;
  c.wrap_tier = [](std::unique_ptr<kv::Tier> tier, const kv::TierConfig& shape) -> std::unique_ptr<kv::Tier> {
    const kv::testing::TierFaults faults{
        .staged = true, .batch_latency_seconds = 1e-4, .batch_jitter_seconds = 5e-4, .present_limit = 80};
    return std::make_unique<kv::testing::FaultyTier>(std::move(tier), shape, faults);
  };
  expect_equal_to_serial(c, 5);
}

TEST(Hazards, ExactTokensFromAFileAreThoseOfSerialMode) {
  EngineConfig c = tight_config();
  c.attention = engine::Attention::kSparse;
  c.fetch = lookahead::FetchMode::kExact;
  const auto path = std::filesystem::temp_directory_path() / fmt::format("oasis-hazards-{}", ::getpid());
  c.capacity_file = path;
  c.capacity_memory = 6 << 20;
  expect_equal_to_serial(c, 6);
  EXPECT_FALSE(std::filesystem::exists(path));
}

// A draft head's own KV moves with its sequence; drafts come from it and from prompt lookup.
TEST(Hazards, TokensWithADraftHeadAreThoseOfSerialMode) {
  const draft::HeadFiles::Folder folder("hazards");
  const model::ModelConfig model = engine::testing::tiny_config();
  draft::random_head({.hidden = model.hidden, .target_hidden = model.hidden, .vocab = static_cast<int>(model.vocab)}, 3)
      .write(folder.path());
  EngineConfig c = accepting();
  c.draft = "auto:" + folder.path();
  expect_equal_to_serial(c, 10);
}

// Pages for about two of four sequences: they push each other out.
TEST(Hazards, TokensUnderMemoryPressureAreThoseOfSerialMode) {
  EngineConfig c = accepting();
  c.attention = engine::Attention::kDense;
  c.fast_memory = 3 << 20;
  const Schedule schedule = random_schedule(7, steps_to_run());
  c.serial = true;
  const Played want = play(c, schedule);
  c.serial = false;
  c.hooks.poison = true;
  const Played got = play(c, schedule);
  for (size_t i = 0; i < schedule.joins.size(); ++i) EXPECT_EQ(got.outputs[i].tokens, want.outputs[i].tokens) << i;
}

// Which blocks are there in time depends on the clock, so tokens do too; nothing else may.
TEST(Hazards, ABoundedRunFromASlowStagedTierStaysSound) {
  EngineConfig c = accepting();
  c.attention = engine::Attention::kSparse;
  c.hooks.poison = true;
  c.hooks.delay = random_delays(8);
  c.wrap_tier = [](std::unique_ptr<kv::Tier> tier, const kv::TierConfig& shape) -> std::unique_ptr<kv::Tier> {
    const kv::testing::TierFaults faults{
        .staged = true, .batch_latency_seconds = 1e-4, .batch_jitter_seconds = 3e-3, .present_limit = 80};
    return std::make_unique<kv::testing::FaultyTier>(std::move(tier), shape, faults);
  };
  const Played run = play(c, random_schedule(8, steps_to_run()));
  for (const Output& out : run.outputs) {
    EXPECT_EQ(out.finishes, 1);
    EXPECT_NE(out.finish, engine::FinishReason::kError) << out.error.message();
  }
  EXPECT_GT(run.metrics.core.refused_absent, 0);
  EXPECT_GT(run.metrics.core.admitted, 0);
}

}  // namespace
}  // namespace oasis
