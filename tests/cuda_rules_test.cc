// The rules of residency as captured steps follow them on a GPU, against the simulation: from the GPU's own predictions
// and acceptances every head's residents and lists must come out, at every step.
#include <memory>

#include "oasis/engine/engine_test_util.h"
#include "oasis/kernels/backend_test_util.h"
#include "rules_config.h"
#include "rules_simulation.h"

namespace oasis {
namespace {

using engine::Engine;
using engine::EngineConfig;

struct HeadRun {
  rules::Trace trace;
  rules::StepResult start;
  std::vector<rules::StepResult> steps;
};

// Scores that rank the candidates as they were ranked; which blocks come after the ranked ones is never asked.
std::vector<float> scores_of(const std::vector<int32_t>& ranking, int32_t candidates) {
  std::vector<float> scores(static_cast<size_t>(candidates), -1);
  for (size_t rank = 0; rank < ranking.size(); ++rank) {
    scores[static_cast<size_t>(ranking[rank])] = static_cast<float>(ranking.size() - rank);
  }
  return scores;
}

// All heads of one request, read from the engine after each of its steps (which brings the GPU's state home).
class Recorder {
 public:
  Recorder(Engine& engine, engine::Request& request) : engine_(engine), core_(*engine.impl_for_test().core) {
    request.on_event = [this](const engine::Event& e) {
      if (!e.tokens.empty()) record();
    };
  }
  void set_id(engine::RequestId id) { id_ = id; }
  int64_t steps() const { return runs_.empty() ? 0 : static_cast<int64_t>(runs_[0].steps.size()); }
  bool switched() const { return dense_before_ && steps() > 0; }

  // Returns the block-heads that the simulation admits.
  int64_t expect_the_rules() const {
    int64_t admitted = 0;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const auto want = rules::simulate(runs_[i].trace);
      EXPECT_TRUE(want.ok()) << want.status().message();
      if (!want.ok()) return 0;
      expect_equal(runs_[i].start, want->start, fmt::format("head {}, start", i));
      for (size_t t = 0; t < runs_[i].steps.size() && !testing::Test::HasFailure(); ++t) {
        expect_equal(runs_[i].steps[t], want->steps[t], fmt::format("head {}, step {}", i, t));
        admitted += static_cast<int64_t>(want->steps[t].admitted.size());
      }
    }
    return admitted;
  }

 private:
  static void expect_equal(const rules::StepResult& got, const rules::StepResult& want, const std::string& where) {
    SCOPED_TRACE(where);
    EXPECT_EQ(got.predicted, want.predicted);
    EXPECT_EQ(got.residents, want.residents);
    EXPECT_EQ(got.list, want.list);
  }

  void record() {
    const engine::EngineSequence* s = engine::testing::sequence_of(engine_, id_);
    ASSERT_NE(s, nullptr);
    const lookahead::Sequence& q = core_.sequence(s->index);
    dense_before_ |= !q.sparse;
    if (!q.sparse) return;
    const bool starts = runs_.empty();
    size_t i = 0;
    for (int32_t layer = 0; layer < core_.config().shape.layers; ++layer) {
      for (int32_t head = 0; head < core_.config().shape.kv_heads; ++head, ++i) {
        rules::StepResult left = left_by(s->index, layer, head);
        if (starts) {
          runs_.push_back(start(q, left));
          runs_[i].start = std::move(left);
        } else {
          const int32_t position = q.position - q.advanced;
          runs_[i].trace.steps.push_back(
              {.t = q.step - 1,
               .position = position,
               .advanced = advanced_,
               .scores = scores_of(left.predicted, (position + 1) / core_.config().shape.block_size)});
          runs_[i].steps.push_back(std::move(left));
        }
      }
    }
    advanced_ = q.advanced;
  }

  // The ranking of the R best is what the residents were marked with: P, then -2 - rank.
  HeadRun start(const lookahead::Sequence& q, const rules::StepResult& left) const {
    const auto& c = core_.config();
    std::vector<int32_t> ranking = left.predicted;
    ranking.resize(left.residents.size());
    for (const rules::Resident& r : left.residents) {
      if (r.last_predicted < -1) ranking[static_cast<size_t>(-2 - r.last_predicted)] = r.block;
    }
    const int32_t position = q.position - q.advanced;
    return {.trace = {.k = c.attend_blocks,
                      .r = c.resident_blocks,
                      .c = c.cap(),
                      .pin_first = c.score == lookahead::BlockScore::kShrunk,
                      .block_size = c.shape.block_size,
                      .accepted_at_most = c.max_draft_rows - 1,
                      .max_blocks = q.max_blocks,
                      .start = {.position = position,
                                .scores = scores_of(ranking, (position + 1) / c.shape.block_size),
                                .last_predicted = q.step - 1}}};
  }

  rules::StepResult left_by(int32_t index, int32_t layer, int32_t head) const {
    rules::StepResult out;
    const auto predicted = core_.predicted(index, layer, head);
    out.predicted.assign(predicted.begin(), predicted.end());
    for (const auto& [block, last] : core_.residents(index, layer, head)) out.residents.push_back({block, last});
    out.list = core_.listed(index, layer, head);
    return out;
  }

  Engine& engine_;
  lookahead::KvCore& core_;
  engine::RequestId id_ = 0;
  int32_t advanced_ = 1;
  bool dense_before_ = false;
  std::vector<HeadRun> runs_;  // [layer, head]
};

EngineConfig random_config(std::mt19937& random) {
  EngineConfig c = engine::testing::random_rules_config(random);
  c.max_context = 704;
  c.prefix_cache = false;
  return c;
}

struct Seen {
  int64_t steps = 0, switches = 0, admitted = 0;
};

// As many requests at once as there are sequences.
void run_case(const EngineConfig& config, uint32_t preempt_every, std::mt19937& random, Seen& seen) {
  const auto engine =
      engine::testing::make_engine(config, engine::testing::tiny_model(), kernels::test_device(Backend::kCuda));
  std::vector<std::unique_ptr<Recorder>> recorders;
  std::vector<engine::RequestId> ids;
  for (int32_t i = 0; i < config.max_sequences; ++i) {
    int64_t prompt = 150 + static_cast<int64_t>(random() % 250);
    const int64_t output = 60 + static_cast<int64_t>(random() % 60);
    if (config.attention == engine::Attention::kAuto && random() % 4 != 0) {  // soon to become sparse
      prompt = int64_t{engine->plan().core.resident_blocks + 1} * config.block_size - 1 -
               static_cast<int64_t>(random() % 50);
    }
    engine::Request r;
    r.prompt = engine::testing::repetitive_tokens(random, prompt + output, 12);
    r.forced.assign(r.prompt.begin() + prompt, r.prompt.end());
    r.prompt.resize(static_cast<size_t>(prompt));
    r.max_tokens = static_cast<int32_t>(output);
    recorders.push_back(std::make_unique<Recorder>(*engine, r));
    ids.push_back(engine::testing::submit(*engine, std::move(r)));
    recorders.back()->set_id(ids.back());
  }
  while (engine->step()) {
    for (const auto id : ids) {
      if (preempt_every > 0 && random() % preempt_every == 0) engine->preempt_for_test(id);
    }
  }
  const Status status = engine->check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
  int64_t admitted = 0;
  for (const auto& recorder : recorders) {
    admitted += recorder->expect_the_rules();
    seen.steps += recorder->steps();
    seen.switches += recorder->switched();
  }
  // The counters, which are added up on the GPU.
  EXPECT_EQ(engine->metrics().core.admitted, admitted);
  EXPECT_EQ(engine->metrics().core.predict_seconds, 0) << "the host predicted: no step was captured";
  seen.admitted += admitted;
}

TEST(RulesOnTheGpu, CapturedStepsFollowTheSimulation) {
  OASIS_SKIP_WITHOUT(Backend::kCuda);
  std::mt19937 random(1);
  Seen seen;
  for (int run = 0; run < 20 && !HasFailure(); ++run) {
    const EngineConfig c = random_config(random);
    const uint32_t preempt_every = random() % 3 ? 0 : 12;
    SCOPED_TRACE(fmt::format("run {}: sequences {} block {} K {} ratio {} fetch {} n {} draft {} auto {} preempt {}",
                             run, c.max_sequences, c.block_size, c.top_k_blocks, c.resident_ratio, c.fetch_ratio,
                             c.accept_drafts ? c.draft_tokens : 0, c.draft, c.attention == engine::Attention::kAuto,
                             preempt_every));
    run_case(c, preempt_every, random, seen);
  }
  EXPECT_GT(seen.steps, 500);
  EXPECT_GE(seen.switches, 2);
  EXPECT_GT(seen.admitted, 1000);
}

}  // namespace
}  // namespace oasis
