// Drafts change how fast tokens come, not which.
#include <cmath>
#include <numeric>

#include "oasis/engine/engine_test_util.h"

namespace oasis::engine {
namespace {

using testing::make_engine;
using testing::Output;

constexpr int32_t kOutput = 120;

EngineConfig config(Attention attention, bool accept) {
  EngineConfig c;
  c.max_context = 640;
  c.attention = attention;
  c.fetch = lookahead::FetchMode::kExact;
  c.top_k_blocks = 6;
  c.resident_ratio = 3;
  c.draft = accept ? "ngram" : "none";
  c.accept_drafts = accept;
  c.draft_tokens = 6;
  return c;
}

Request request(uint32_t seed) {
  std::mt19937 random(seed);
  Request r;
  r.prompt = testing::repetitive_tokens(random, 200, 15);
  r.max_tokens = kOutput;
  return r;
}

// Kernels differ with the number of rows: results agree up to rounding, tokens up to the first near tie.
void expect_equal_up_to_a_near_tie(const std::vector<int32_t>& got, const Output& want) {
  for (size_t i = 0; i < want.tokens.size(); ++i) {
    std::vector<float> z = want.logits[i];
    std::nth_element(z.begin(), z.begin() + 1, z.end(), std::greater<>());
    if (z[0] - z[1] < .1f) return;
    ASSERT_EQ(got[i], want.tokens[i]) << "output " << i;
  }
}

int64_t compare_with_and_without_drafts(Attention attention) {
  int64_t accepted = 0;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    const auto plain = make_engine(config(attention, false)), drafting = make_engine(config(attention, true));
    const Output want = testing::run(*plain, request(seed), true);
    expect_equal_up_to_a_near_tie(testing::run(*drafting, request(seed)).tokens, want);
    EXPECT_EQ(plain->metrics().accepted, 0);
    // Teacher-forced along a text that drafts foresee: the logits of every position.
    Request forced = request(seed);
    std::mt19937 random(seed);
    forced.forced = testing::repetitive_tokens(random, 200 + kOutput, 15);
    forced.forced.erase(forced.forced.begin(), forced.forced.begin() + 200);
    const auto plain_too = make_engine(config(attention, false)), drafting_too = make_engine(config(attention, true));
    const Output a = testing::run(*plain_too, forced, true), b = testing::run(*drafting_too, forced, true);
    accepted += drafting_too->metrics().accepted;
    EXPECT_LT(drafting_too->metrics().steps, kOutput * 3 / 4);
    size_t far = 0;
    for (size_t i = 0; i < a.logits.size(); ++i) {
      float distance = 0;
      for (size_t t = 0; t < a.logits[i].size(); ++t) {
        distance = std::max(distance, std::abs(a.logits[i][t] - b.logits[i][t]));
      }
      EXPECT_LT(distance, .5f) << "output " << i;
      far += distance > .05f;
    }
    // Where two blocks score nearly alike, rounding decides which is read.
    EXPECT_LE(far, attention == Attention::kDense ? 0 : a.logits.size() / 20);
  }
  return accepted;
}

TEST(Drafts, DenseTokensAreTheSameWithAndWithoutThem) {
  EXPECT_GT(compare_with_and_without_drafts(Attention::kDense), 200);
}

TEST(Drafts, ExactTokensAreTheSameWithAndWithoutThem) {
  EXPECT_GT(compare_with_and_without_drafts(Attention::kSparse), 200);
}

// --- Sampling ---

struct Tiny {
  Tiny() {
    model::ModelConfig c = testing::tiny_config();
    c.layers = 1;
    c.vocab = 12;
    checkpoint.emplace(model::make_random(c, 2));
  }
  std::optional<model::Checkpoint> checkpoint;
};

Request sampling_request(uint64_t seed) {
  Request r;
  r.prompt = {1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2, 3, 1, 2};
  r.max_tokens = 3;
  r.sampling = {.temperature = 1.5f, .top_k = 3, .seed = seed};
  return r;
}

// The probabilities of the next token after `output`, from the logits and the definition of temperature and top-k.
std::vector<std::pair<int32_t, double>> next_token(Engine& engine, const std::vector<int32_t>& output) {
  Request r = sampling_request(0);
  r.forced = output;
  r.forced.push_back(0);
  r.max_tokens = static_cast<int32_t>(r.forced.size());
  const std::vector<float> z = testing::run(engine, r, true).logits[output.size()];
  std::vector<int32_t> order(z.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return z[static_cast<size_t>(a)] > z[static_cast<size_t>(b)]; });
  std::vector<std::pair<int32_t, double>> out;
  double sum = 0;
  for (size_t i = 0; i < 3; ++i) {
    out.emplace_back(order[i], std::exp(double{z[static_cast<size_t>(order[i])]} / 1.5));
    sum += out.back().second;
  }
  for (auto& [token, p] : out) p /= sum;
  return out;
}

TEST(Drafts, SamplesWithAcceptedDraftsHaveTheModelsDistribution) {
  const Tiny tiny;
  EngineConfig plain = config(Attention::kDense, false), drafting = config(Attention::kDense, true);
  drafting.max_sequences = 16;
  const auto oracle = make_engine(plain, *tiny.checkpoint), engine = make_engine(drafting, *tiny.checkpoint);
  std::map<std::vector<int32_t>, double> expected;
  for (const auto& [a, p] : next_token(*oracle, {})) {
    for (const auto& [b, q] : next_token(*oracle, {a})) {
      for (const auto& [c, r] : next_token(*oracle, {a, b})) expected[{a, b, c}] = p * q * r;
    }
  }
  constexpr int kSamples = 3000;
  std::vector<Output> outputs(kSamples);
  for (int i = 0; i < kSamples; ++i) {
    Request r = sampling_request(static_cast<uint64_t>(i) * 977 + 5);
    testing::report_to(outputs[static_cast<size_t>(i)], r);
    testing::submit(*engine, std::move(r));
  }
  engine->run_until_idle();
  EXPECT_GT(engine->metrics().accepted, kSamples / 3);
  std::map<std::vector<int32_t>, int> counts;
  for (const Output& out : outputs) ++counts[out.tokens];
  double chi_square = 0;
  for (const auto& [tokens, p] : expected) {
    const double want = p * kSamples;
    chi_square += (counts[tokens] - want) * (counts[tokens] - want) / want;
  }
  ASSERT_EQ(expected.size(), 27u);
  EXPECT_EQ(counts.size(), 27u);  // nothing that the model cannot say
  EXPECT_LT(chi_square, 54.1);    // 26 degrees of freedom: exceeded once in 1,000 times
}

TEST(Drafts, ASeedGivesTheSameSampleWhateverRunsBeside) {
  EngineConfig c = config(Attention::kDense, true);
  c.max_sequences = 3;
  const auto sample = [&](uint64_t seed, int others) {
    const auto engine = make_engine(c);
    std::vector<Output> out(3);
    for (size_t i = 0; i <= static_cast<size_t>(others); ++i) {
      Request r = request(static_cast<uint32_t>(i) + 1);
      r.max_tokens = 40;
      r.sampling = {.temperature = 1, .top_p = .9f, .seed = i == 0 ? seed : 1000 + i};
      testing::report_to(out[i], r);
      testing::submit(*engine, std::move(r));
    }
    engine->run_until_idle();
    return out[0].tokens;
  };
  const auto first = sample(1, 0);
  EXPECT_EQ(sample(1, 0), first);
  EXPECT_EQ(sample(1, 2), first);
  EXPECT_NE(sample(2, 0), first);
}

TEST(Drafts, ForcedTokensAreFollowedWhateverIsProposed) {
  for (const bool accept : {false, true}) {
    Request r = request(9);
    std::mt19937 random(4);
    r.forced = testing::repetitive_tokens(random, kOutput, 6);
    const auto engine = make_engine(config(Attention::kSparse, accept));
    EXPECT_EQ(testing::run(*engine, r).tokens, r.forced);
  }
}

// Accepted drafts never carry an output over its limit or past a stop token.
TEST(Drafts, AcceptanceEndsWhereTheOutputDoes) {
  for (int32_t limit = 1; limit <= 20; ++limit) {
    const auto engine = make_engine(config(Attention::kDense, true));
    Request r;
    for (int i = 0; i < 60; ++i) r.prompt.push_back(i % 6);
    for (int i = 0; i < 40; ++i) r.forced.push_back(i % 6);
    r.max_tokens = limit;
    EXPECT_EQ(testing::run(*engine, r).tokens.size(), static_cast<size_t>(limit));
    r.max_tokens = 40;
    r.forced[static_cast<size_t>(limit) - 1] = 77;
    r.stop_tokens = {77};
    const Output out = testing::run(*engine, r);
    EXPECT_EQ(out.tokens.size(), static_cast<size_t>(limit));
    EXPECT_EQ(out.finish, FinishReason::kStop);
  }
}

}  // namespace
}  // namespace oasis::engine
