#include "async_tier.h"

#include <algorithm>
#include <thread>

#include "oasis/engine/engine_test_util.h"
#include "oasis/kv/testing/faulty_tier.h"

namespace oasis::async_tier {
namespace {

constexpr int32_t kPrompt = 500;

// Writes what step + 1 attended over the prediction of `step`.
void replay(const Attended& attended, int32_t layer, int64_t step, int32_t* blocks, int32_t* counts, int64_t stride) {
  for (int32_t head = 0; head < engine::testing::tiny_config().kv_heads; ++head) {
    const auto next = attended.find({step + 1, layer, head});
    if (next == attended.end()) continue;  // after the last step
    std::copy(next->second.begin(), next->second.end(), blocks + head * stride);
    counts[head] = static_cast<int32_t>(next->second.size());
  }
}

// The blocks of each head's top-K in the step that just ended: what its row read besides its own open block.
void record(const lookahead::KvCore& core, Attended& attended) {
  const lookahead::Sequence& q = core.sequence(0);
  const int32_t own = (q.position - q.advanced) / core.config().shape.block_size;
  for (int32_t layer = 0; layer < core.config().shape.layers; ++layer) {
    for (int32_t head = 0; head < core.config().shape.kv_heads; ++head) {
      auto list = core.trace(0, layer, head).row_lists.front();
      std::erase_if(list, [&](int32_t block) { return block >= own; });
      attended[{q.step - 1, layer, head}] = std::move(list);
    }
  }
}

}  // namespace

double Measured::median() const {
  std::vector<double> sorted = step_seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

Measured run(const Setup& setup) {
  engine::EngineConfig config;
  config.max_context = kPrompt + setup.tokens;
  config.attention = engine::Attention::kSparse;
  config.fetch = setup.fetch;
  config.top_k_blocks = 8;
  config.resident_ratio = 1;
  config.fetch_ratio = .25;
  config.draft = "ngram";
  config.hooks.delay = [&](lookahead::Stage stage, int32_t, int64_t) {
    if (stage == lookahead::Stage::kAppend && setup.layer_seconds > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(setup.layer_seconds));
    }
  };
  if (setup.prediction) {
    config.hooks.predict = [&](int32_t layer, int64_t step, int32_t, int32_t* blocks, int32_t* counts, int64_t stride) {
      replay(*setup.prediction, layer, step, blocks, counts, stride);
    };
  }
  config.wrap_tier = [&](std::unique_ptr<kv::Tier> tier, const kv::TierConfig& shape) -> std::unique_ptr<kv::Tier> {
    kv::testing::TierFaults faults{.staged = true, .batch_latency_seconds = setup.latency_seconds};
    // exact: nothing stays, so that every fetch is a read. bounded: what was read stays, and is admitted if it comes
    // while it is still wanted.
    faults.present_limit = setup.fetch == lookahead::FetchMode::kExact ? 1 : 0;
    return std::make_unique<kv::testing::FaultyTier>(std::move(tier), shape, faults);
  };
  const auto engine = engine::testing::make_engine(config);
  lookahead::KvCore& core = *engine->impl_for_test().core;
  core.keep_traces(true);
  std::mt19937 random(1);
  engine::Request request;
  request.prompt = engine::testing::random_tokens(random, kPrompt);
  request.forced = engine::testing::random_tokens(random, setup.tokens);
  request.max_tokens = setup.tokens;
  Measured measured;
  request.on_event = [&](const engine::Event& e) {
    if (!e.tokens.empty() && core.sequence(0).step > 0 && setup.fetch == lookahead::FetchMode::kExact) {
      record(core, measured.attended);
    }
  };
  engine::testing::submit(*engine, std::move(request));
  for (bool more = true; more;) {
    const int64_t before = core.stats().steps;
    const auto begin = engine::Clock::now();
    more = engine->step();
    if (core.stats().steps == before) continue;  // idle
    if (before > 0) measured.step_seconds.push_back(engine::seconds_since(begin));
    if (before == 0) measured.demand = -core.stats().demand;
  }
  measured.demand += core.stats().demand;
  measured.stats = core.stats();
  return measured;
}

}  // namespace oasis::async_tier
