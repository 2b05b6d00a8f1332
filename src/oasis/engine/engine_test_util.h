// What the tests of the engine share: tiny random models, and requests run to their end.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "oasis/engine/engine.h"
#include "oasis/engine/engine_impl.h"
#include "oasis/model/random_checkpoint.h"

namespace oasis::engine::testing {

// One thread: the models are too small to share, and waking others is slow on a loaded machine.
inline Device& device() {
  static const auto device = make_cpu_device(1);
  return *device;
}

// 3 layers, 2 KV heads of 3 query heads each, 300 tokens.
inline model::ModelConfig tiny_config() {
  model::ModelConfig c;
  c.name = "tiny";
  c.layers = 3;
  c.hidden = 96;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 64;
  c.intermediate = 128;
  c.vocab = 300;
  c.context = 4096;
  return c;
}

inline const model::Checkpoint& tiny_model() {
  static const model::Checkpoint checkpoint = model::make_random(tiny_config(), 7);
  return checkpoint;
}

inline std::vector<int32_t> random_tokens(std::mt19937& random, int64_t n, int32_t vocab = 300) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& t : out) t = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return out;
}

// Text in which prompt lookup is often right: a phrase over and over, one token in `every` replaced.
inline std::vector<int32_t> repetitive_tokens(std::mt19937& random, int64_t n, uint32_t every) {
  const std::vector<int32_t> phrase = random_tokens(random, 5 + random() % 20);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = random() % every == 0 ? static_cast<int32_t>(random() % 300) : phrase[i % phrase.size()];
  }
  return out;
}

inline std::unique_ptr<Engine> make_engine(const EngineConfig& config,
                                           const model::Checkpoint& checkpoint = tiny_model(),
                                           Device& where = device()) {
  auto engine = Engine::create(where, checkpoint, nullptr, config);
  OASIS_CHECK(engine.ok(), "{}", engine.status().message());
  return std::move(*engine);
}

// What a request came to. Lives as long as its request runs.
struct Output {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  // of every output position, if asked for
  FinishReason finish = FinishReason::kNone;
  Status error;
  int finishes = 0;  // last events: one
};

// Has `request` report to `out`, besides whatever it reports to already.
inline void report_to(Output& out, Request& request, bool logits = false) {
  request.on_event = [&out, also = std::move(request.on_event)](const Event& e) {
    for (const Sampled& t : e.tokens) out.tokens.push_back(t.token);
    if (e.finish != FinishReason::kNone) {
      out.finish = e.finish;
      out.error = e.error;
      ++out.finishes;
    }
    if (also) also(e);
  };
  if (!logits) return;
  request.on_logits = [&out](int32_t index, std::span<const float> z) {
    if (out.logits.size() <= static_cast<size_t>(index)) out.logits.resize(static_cast<size_t>(index) + 1);
    out.logits[static_cast<size_t>(index)].assign(z.begin(), z.end());
  };
}

inline RequestId submit(Engine& engine, Request request) {
  auto id = engine.submit(std::move(request));
  OASIS_CHECK(id.ok(), "{}", id.status().message());
  return *id;
}

inline Output run(Engine& engine, Request request, bool logits = false) {
  Output out;
  report_to(out, request, logits);
  submit(engine, std::move(request));
  engine.run_until_idle();
  const Status status = engine.check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(out.finishes, 1);
  return out;
}

inline const EngineSequence* sequence_of(Engine& engine, RequestId id) {
  for (const EngineSequence* s : engine.impl_for_test().by_index) {
    if (s && s->id == id) return s;
  }
  return nullptr;
}

}  // namespace oasis::engine::testing
