// An EAGLE-3 head in the engine: what it knows of a sequence lives, moves and is shared with the sequence's blocks.
#include "oasis/draft/testing/head_files.h"
#include "oasis/engine/engine_test_util.h"

namespace oasis::engine {
namespace {

using testing::make_engine;
using testing::Output;

class DraftHead : public ::testing::Test {
 protected:
  static draft::HeadSizes sizes() {
    const model::ModelConfig c = testing::tiny_config();
    return {.hidden = c.hidden, .target_hidden = c.hidden, .vocab = static_cast<int>(c.vocab)};
  }
  void SetUp() override { draft::random_head(sizes(), 3).write(folder_.path()); }

  EngineConfig config() const {
    EngineConfig c;
    c.max_sequences = 2;
    c.max_context = 640;
    c.attention = Attention::kSparse;
    c.top_k_blocks = 6;
    c.resident_ratio = 1.5;
    c.fetch = lookahead::FetchMode::kExact;
    c.draft = "eagle3:" + folder_.path();
    c.prefill_chunk = 70;
    return c;
  }

  struct Drafted {
    Output output;
    std::vector<std::vector<int32_t>> drafts;  // proposals after every output token
    RequestStats stats;
  };

  static Drafted run(Engine& engine, const std::vector<int32_t>& prompt, int32_t output, int64_t preempt_every = 0) {
    Drafted out;
    Request r;
    r.prompt = prompt;
    r.max_tokens = output;
    RequestId id = 0;
    r.on_event = [&](const Event& e) {
      if (!e.tokens.empty()) out.drafts.push_back(testing::sequence_of(engine, id)->drafts);
    };
    testing::report_to(out.output, r);
    id = testing::submit(engine, std::move(r));
    for (int64_t step = 0; engine.step(); ++step) {
      if (preempt_every > 0 && step % preempt_every == 0) engine.preempt_for_test(id);
    }
    EXPECT_TRUE(engine.check_integrity().ok()) << engine.check_integrity().message();
    out.stats = *engine.take_stats(id);
    return out;
  }

  static std::vector<int32_t> prompt(int64_t n) {
    std::mt19937 random(5);
    return testing::random_tokens(random, n);
  }

  // How many proposals agree; rounding may change a few.
  static double agreement(const std::vector<std::vector<int32_t>>& a, const std::vector<std::vector<int32_t>>& b) {
    EXPECT_EQ(a.size(), b.size());
    double same = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) same += a[i] == b[i];
    return same / static_cast<double>(a.size());
  }

  draft::HeadFiles::Folder folder_{"engine"};
};

TEST_F(DraftHead, ProposesAfterEveryToken) {
  const auto engine = make_engine(config());
  const Drafted ran = run(*engine, prompt(100), 50);
  ASSERT_EQ(ran.drafts.size(), 50u);
  for (const auto& d : ran.drafts) EXPECT_EQ(d.size(), 1u);
  EXPECT_EQ(ran.stats.proposed, 49);
}

TEST_F(DraftHead, ItsProposalsDoNotDependOnPreemption) {
  const auto a = make_engine(config()), b = make_engine(config());
  const Drafted calm = run(*a, prompt(150), 80), pushed = run(*b, prompt(150), 80, 3);
  EXPECT_GT(pushed.stats.preemptions, 15);
  EXPECT_EQ(pushed.output.tokens, calm.output.tokens);
  EXPECT_EQ(pushed.drafts, calm.drafts);
}

TEST_F(DraftHead, ItsProposalsDoNotDependOnWhatRunsBeside) {
  const auto alone = make_engine(config()), together = make_engine(config());
  const Drafted want = run(*alone, prompt(150), 80);
  Output beside;
  Request r;
  r.prompt = prompt(40);
  r.max_tokens = 200;
  testing::report_to(beside, r);
  testing::submit(*together, std::move(r));
  while (beside.tokens.empty()) together->step();
  const Drafted got = run(*together, prompt(150), 80);  // index 1
  EXPECT_GE(agreement(got.drafts, want.drafts), .9);
}

TEST_F(DraftHead, ItsProposalsDoNotDependOnACachedPrefix) {
  const auto engine = make_engine(config());
  const Drafted first = run(*engine, prompt(150), 60), again = run(*engine, prompt(150), 60);
  EXPECT_EQ(again.stats.cached_tokens, 144);
  EXPECT_GE(agreement(first.drafts, again.drafts), .9);
}

TEST_F(DraftHead, ItsPartOfAnAnswersBlocksIsCachedWithThem) {
  EngineConfig cached = config(), fresh = config();
  cached.attention = fresh.attention = Attention::kDense;
  fresh.prefix_cache = false;
  const auto a = make_engine(cached), b = make_engine(fresh);
  auto tokens = prompt(100);
  const Drafted turn = run(*a, tokens, 90);
  tokens.insert(tokens.end(), turn.output.tokens.begin(), turn.output.tokens.end());
  const Drafted hit = run(*a, tokens, 60), miss = run(*b, tokens, 60);
  EXPECT_EQ(hit.stats.cached_tokens, 176);
  EXPECT_EQ(miss.stats.cached_tokens, 0);
  EXPECT_GE(agreement(hit.drafts, miss.drafts), .9);
}

// case 10
TEST_F(DraftHead, ItsOwnLimitOfPositionsIsNotTheTargets) {
  draft::HeadFiles head = draft::random_head(sizes(), 3);
  head.config["max_position_embeddings"] = 64;
  head.write(folder_.path());
  EngineConfig accept = config(), none = config();
  accept.accept_drafts = true;
  none.draft = "none";
  const auto a = make_engine(accept), b = make_engine(none);
  const Drafted with = run(*a, prompt(100), 80);
  EXPECT_EQ(with.output.tokens, run(*b, prompt(100), 80).output.tokens);
  for (const auto& d : with.drafts) EXPECT_EQ(d.size(), 5u);
}

TEST_F(DraftHead, ItsKvCountsAsFastMemory) {
  const auto engine = make_engine(config());
  EXPECT_GT(engine->plan().draft_bytes, 0);
  EXPECT_EQ(engine->plan().draft_bytes, engine->drafter().fast_bytes());
  run(*engine, prompt(300), 20);
  EXPECT_LE(engine->metrics().fast_bytes_peak, engine->metrics().fast_bytes_limit);
}

}  // namespace
}  // namespace oasis::engine
