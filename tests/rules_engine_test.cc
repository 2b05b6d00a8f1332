// The engine's own runs against the simulation of the rules: every head's prediction, fetches, residents and lists, at
// every step, from the scores and acceptances that the engine had.
#include <set>

#include "oasis/engine/engine_test_util.h"
#include "oasis/kv/testing/faulty_tier.h"
#include "rules_config.h"
#include "rules_simulation.h"

namespace oasis {
namespace {

using engine::Engine;
using engine::EngineConfig;
using lookahead::HeadTrace;

struct HeadRun {
  rules::Trace trace;
  rules::StepResult start;
  std::vector<rules::StepResult> steps;
};

// The runs of all heads of one request, recorded from its events.
class Recorder {
 public:
  Recorder(Engine& engine, engine::Request& request) : engine_(engine), core_(*engine.impl_for_test().core) {
    core_.keep_traces(true);
    request.on_event = [this](const engine::Event& e) {
      if (!e.tokens.empty()) record();
    };
  }
  void set_id(engine::RequestId id) { id_ = id; }
  int64_t steps() const { return runs_.empty() ? 0 : static_cast<int64_t>(runs_[0].steps.size()); }
  bool switched() const { return dense_before_; }
  // (offset of x_t in its block, tokens advanced) of all steps.
  const std::set<std::pair<int32_t, int32_t>>& advances() const { return advances_; }

  // What the paper promises, read off the run without the simulation.
  void expect_the_bounds() const {
    for (const HeadRun& run : runs_) {
      for (size_t t = 0; t < run.steps.size(); ++t) {
        const auto advanced = static_cast<size_t>(run.trace.steps[t].advanced);
        ASSERT_LE(run.steps[t].admitted.size(), static_cast<size_t>(run.trace.c) * advanced) << "step " << t;
        ASSERT_LE(run.steps[t].residents.size(), static_cast<size_t>(run.trace.r)) << "step " << t;
        ASSERT_EQ(run.steps[t].demanded.size(), 0u);
        // Read: K sealed blocks and the open ones. case 13
        ASSERT_LE(run.steps[t].list.size(), static_cast<size_t>(run.trace.k) + 3) << "step " << t;
      }
    }
  }

  void expect_the_rules() const {
    for (const HeadRun& run : runs_) {
      const auto want = rules::simulate(run.trace);
      ASSERT_TRUE(want.ok()) << want.status().message();
      expect_equal(run.start, want->start, "start");
      for (size_t t = 0; t < run.steps.size() && !testing::Test::HasFailure(); ++t) {
        expect_equal(run.steps[t], want->steps[t], fmt::format("step {} of {}", t, run.steps.size()));
      }
    }
  }

 private:
  static void expect_equal(const rules::StepResult& got, const rules::StepResult& want, const std::string& where) {
    SCOPED_TRACE(where);
    EXPECT_EQ(got.row_lists, want.row_lists);
    EXPECT_EQ(got.demanded, want.demanded);
    EXPECT_EQ(got.predicted, want.predicted);
    EXPECT_EQ(got.admitted, want.admitted);
    EXPECT_EQ(got.wanted, want.wanted);
    EXPECT_EQ(got.residents, want.residents);
    EXPECT_EQ(got.list, want.list);
  }

  void record() {
    const engine::EngineSequence* s = engine::testing::sequence_of(engine_, id_);
    ASSERT_NE(s, nullptr);
    const lookahead::Sequence& q = core_.sequence(s->index);
    if (!q.sparse) {
      dense_before_ = true;
      return;
    }
    const auto& c = core_.config();
    const bool starts = runs_.empty();
    size_t i = 0;
    for (int32_t layer = 0; layer < c.shape.layers; ++layer) {
      for (int32_t head = 0; head < c.shape.kv_heads; ++head, ++i) {
        const HeadTrace& trace = core_.trace(s->index, layer, head);
        if (starts) {
          runs_.push_back(start(q, trace));
          runs_[i].start = left(s->index, layer, head);
        } else {
          add_step(runs_[i], q, trace);
          runs_[i].steps.back() = outcome(q, trace, left(s->index, layer, head));
        }
      }
    }
    if (!starts) advances_.emplace((q.position - q.advanced) % c.shape.block_size, q.advanced);
    advanced_ = q.advanced;
  }

  HeadRun start(const lookahead::Sequence& q, const HeadTrace& trace) const {
    const auto& c = core_.config();
    HeadRun run;
    run.trace = {.k = c.attend_blocks,
                 .r = c.resident_blocks,
                 .c = c.cap(),
                 .exact = c.fetch == lookahead::FetchMode::kExact,
                 .pin_first = c.score == lookahead::BlockScore::kShrunk,
                 .block_size = c.shape.block_size,
                 .accepted_at_most = c.max_draft_rows - 1,
                 .max_blocks = q.max_blocks};
    run.trace.start = {.position = q.position - q.advanced, .scores = trace.scores, .last_predicted = q.step - 1};
    return run;
  }

  void add_step(HeadRun& run, const lookahead::Sequence& q, const HeadTrace& trace) const {
    rules::TraceStep step{.t = q.step - 1,
                          .position = q.position - q.advanced,
                          .advanced = advanced_,
                          .scores = trace.scores,
                          .absent = trace.absent};
    if (run.trace.exact) {
      step.rows_taken = trace.rows_taken;
      for (size_t row = 0; row < trace.row_scores.size(); ++row) {
        step.verified.push_back({step.position + static_cast<int32_t>(row), trace.row_scores[row]});
      }
    }
    run.trace.steps.push_back(std::move(step));
    run.steps.emplace_back();
  }

  rules::StepResult left(int32_t index, int32_t layer, int32_t head) const {
    rules::StepResult out;
    const auto predicted = core_.predicted(index, layer, head);
    out.predicted.assign(predicted.begin(), predicted.end());
    for (const auto& [block, last] : core_.residents(index, layer, head)) out.residents.push_back({block, last});
    out.list = core_.listed(index, layer, head);
    return out;
  }

  rules::StepResult outcome(const lookahead::Sequence& q, const HeadTrace& trace, rules::StepResult out) const {
    out.admitted = trace.admitted;
    out.wanted = trace.wanted;
    out.demanded = trace.demanded;
    for (int32_t row = 0; row < trace.rows_taken; ++row) {
      auto list = trace.row_lists[static_cast<size_t>(row)];
      // The last verified row's list is shared by the lookahead-only rows, which need their own blocks on top.
      const int32_t own = (q.position - q.advanced + row) / core_.config().shape.block_size;
      std::erase_if(list, [&](int32_t block) { return block > own; });
      out.row_lists.push_back(std::move(list));
    }
    return out;
  }

  Engine& engine_;
  lookahead::KvCore& core_;
  engine::RequestId id_ = 0;
  int32_t advanced_ = 1;
  bool dense_before_ = false;
  std::vector<HeadRun> runs_;  // [layer, head]
  std::set<std::pair<int32_t, int32_t>> advances_;
};

struct Case {
  EngineConfig config;
  bool staged = false;
  uint32_t preempt_every = 0;  // 0: never
};

struct Seen {
  int64_t steps = 0, switches = 0;
  std::set<std::pair<int32_t, int32_t>> advances;
};

// Runs a few requests at once.
void run_case(const Case& test, std::mt19937& random, Seen& seen) {
  EngineConfig config = test.config;
  config.max_context = 704;
  config.prefix_cache = false;
  if (test.staged) {
    config.wrap_tier = [](std::unique_ptr<kv::Tier> tier, const kv::TierConfig& shape) -> std::unique_ptr<kv::Tier> {
      const kv::testing::TierFaults faults{
          .staged = true, .batch_latency_seconds = .0005, .batch_jitter_seconds = .003, .present_limit = 60};
      return std::make_unique<kv::testing::FaultyTier>(std::move(tier), shape, faults);
    };
  }
  const auto engine = engine::testing::make_engine(config);
  std::vector<std::unique_ptr<Recorder>> recorders;
  std::vector<engine::RequestId> ids;
  for (int32_t i = 0; i < config.max_sequences; ++i) {
    engine::Request r;
    int64_t prompt = 150 + static_cast<int64_t>(random() % 250);
    const int64_t output = 60 + static_cast<int64_t>(random() % 60);
    if (config.attention == engine::Attention::kAuto && random() % 4 != 0) {  // soon to become sparse
      prompt = int64_t{engine->plan().core.resident_blocks + 1} * config.block_size - 1 -
               static_cast<int64_t>(random() % 50);
    }
    if (random() % 4 == 0) {
      r.prompt = engine::testing::random_tokens(random, prompt);
    } else {
      r.prompt = engine::testing::repetitive_tokens(random, prompt + output, 12);
      r.forced.assign(r.prompt.begin() + prompt, r.prompt.end());
      r.prompt.resize(static_cast<size_t>(prompt));
    }
    r.max_tokens = static_cast<int32_t>(output);
    recorders.push_back(std::make_unique<Recorder>(*engine, r));
    ids.push_back(engine::testing::submit(*engine, std::move(r)));
    recorders.back()->set_id(ids.back());
  }
  while (engine->step()) {
    for (const auto id : ids) {
      if (test.preempt_every > 0 && random() % test.preempt_every == 0) engine->preempt_for_test(id);
    }
    if (random() % 16 == 0) {
      const Status status = engine->check_integrity();
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  EXPECT_LE(engine->metrics().fast_bytes_peak, engine->metrics().fast_bytes_limit);
  for (const auto& recorder : recorders) {
    recorder->expect_the_rules();
    if (config.fetch == lookahead::FetchMode::kBounded) recorder->expect_the_bounds();
    seen.advances.insert(recorder->advances().begin(), recorder->advances().end());
    seen.steps += recorder->steps();
    seen.switches += recorder->switched() && recorder->steps() > 0;
  }
}

Case random_case(std::mt19937& random) {
  const auto pick = [&](int32_t a, int32_t b) { return std::uniform_int_distribution<int32_t>(a, b)(random); };
  Case test;
  EngineConfig& c = test.config;
  c = engine::testing::random_rules_config(random);
  if (pick(0, 1)) c.fetch = lookahead::FetchMode::kExact;
  test.staged = pick(0, 2) == 0;
  test.preempt_every = pick(0, 2) ? 0 : 12;
  return test;
}

void expect_random_runs_follow_the_rules(lookahead::FetchMode fetch, uint32_t seed) {
  std::mt19937 random(seed);
  Seen seen;
  for (int run = 0; run < 40 && !testing::Test::HasFailure(); ++run) {
    Case test = random_case(random);
    test.config.fetch = fetch;
    const auto& c = test.config;
    SCOPED_TRACE(
        fmt::format("run {}: sequences {} block {} K {} ratio {} fetch {} n {} draft {} auto {} staged {} preempt {}",
                    run, c.max_sequences, c.block_size, c.top_k_blocks, c.resident_ratio, c.fetch_ratio,
                    c.accept_drafts ? c.draft_tokens : 0, c.draft, c.attention == engine::Attention::kAuto, test.staged,
                    test.preempt_every));
    run_case(test, random, seen);
  }
  EXPECT_GT(seen.steps, 500);
  EXPECT_GE(seen.switches, 4);
}

// And no head admits more than C a token advanced, holds more than R, or reads more than K and the open blocks.
TEST(RulesOfTheEngine, BoundedRunsFollowTheSimulation) {
  expect_random_runs_follow_the_rules(lookahead::FetchMode::kBounded, 1);
}

TEST(RulesOfTheEngine, ExactRunsFollowTheSimulation) {
  expect_random_runs_follow_the_rules(lookahead::FetchMode::kExact, 2);
}

// case 13
TEST(RulesOfTheEngine, AsManyTokensAreReadAsTheBudgetSaysForEveryBlockSize) {
  for (const int32_t block_size : {16, 32, 64}) {
    EngineConfig config;
    config.max_context = 1400;
    config.attention = engine::Attention::kSparse;
    config.block_size = block_size;
    config.top_k_blocks = 256 / block_size;
    config.draft = "ngram";
    const auto engine = engine::testing::make_engine(config);
    const lookahead::KvCore& core = *engine->impl_for_test().core;
    std::mt19937 random(1);
    engine::Request r;
    r.prompt = engine::testing::random_tokens(random, 1300);
    r.max_tokens = 80;
    int lists = 0;
    r.on_event = [&](const engine::Event& e) {
      const lookahead::Sequence& q = core.sequence(0);
      for (int32_t layer = 0; !e.tokens.empty() && layer < core.config().shape.layers; ++layer) {
        for (int32_t head = 0; head < core.config().shape.kv_heads; ++head, ++lists) {
          const auto list = core.listed(0, layer, head);
          EXPECT_EQ(std::count_if(list.begin(), list.end(), [&](int32_t b) { return b < q.sealed; }) * block_size, 256);
          // Block 0 is pinned, the block of the next row is open.
          EXPECT_EQ(list.front(), 0);
          EXPECT_TRUE(std::binary_search(list.begin(), list.end(), q.position / block_size));
        }
      }
    };
    engine::testing::submit(*engine, std::move(r));
    engine->run_until_idle();
    EXPECT_EQ(lists, 80 * 3 * 2);
  }
}

// Every number of accepted drafts, from every offset in a block from which it reaches over the border. case 12
TEST(RulesOfTheEngine, AcceptedDraftsCrossBlockBordersAtEveryOffset) {
  std::mt19937 random(3);
  std::set<std::pair<int32_t, int32_t>> missing;
  for (int32_t advanced = 2; advanced <= 9; ++advanced) {
    for (int32_t offset = 17 - advanced; offset < 16; ++offset) missing.emplace(offset, advanced);
  }
  Seen seen;
  for (int run = 0; run < 200 && !missing.empty() && !HasFailure(); ++run) {
    Case test;
    EngineConfig& c = test.config;
    c.max_sequences = 2;
    c.top_k_blocks = 4;
    c.resident_ratio = 1.5;
    c.fetch_ratio = .25;
    c.draft = "ngram";
    c.accept_drafts = true;
    c.draft_tokens = 8;
    c.attention = run % 3 ? engine::Attention::kSparse : engine::Attention::kAuto;
    if (run % 2) c.fetch = lookahead::FetchMode::kExact;
    // With R = K the union of many rows' lists does not fit; a large R accepts them all.
    if (run % 4 == 3) c.resident_ratio = 6;
    run_case(test, random, seen);
    for (const auto& advance : seen.advances) missing.erase(advance);
  }
  EXPECT_EQ(missing.size(), 0u) << "for one, from offset " << missing.begin()->first << " by "
                                << missing.begin()->second;
}

}  // namespace
}  // namespace oasis
