#include "oasis/engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "oasis/engine/philox.h"

namespace oasis::engine {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t vocab, uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = normal(random);
  return logits;
}

// The oracle: the distribution that the parameters describe, in fp64 with full sorts.
struct Oracle {
  SamplingParams params;
  std::vector<int32_t> prompt, output;

  std::vector<double> adjusted(const std::vector<float>& logits) const {
    std::vector<double> x(logits.begin(), logits.end());
    std::map<int32_t, int> count;
    for (int32_t t : output) ++count[t];
    std::set<int32_t> seen(prompt.begin(), prompt.end());
    seen.insert(output.begin(), output.end());
    for (int32_t t : seen) {
      double& v = x[static_cast<size_t>(t)];
      v = v > 0 ? v / params.repetition_penalty : v * params.repetition_penalty;
    }
    for (auto [t, n] : count)
      x[static_cast<size_t>(t)] -= params.presence_penalty + double{params.frequency_penalty} * n;
    for (auto [t, bias] : params.logit_bias) x[static_cast<size_t>(t)] += bias;
    return x;
  }

  std::vector<double> distribution(const std::vector<float>& logits) const {
    const std::vector<double> x = adjusted(logits);
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
    std::vector<double> p(x.size());
    if (params.temperature == 0) {
      p[order[0]] = 1;
      return p;
    }
    size_t keep = params.top_k > 0 ? std::min<size_t>(x.size(), static_cast<size_t>(params.top_k)) : x.size();
    double total = 0;
    for (size_t i = 0; i < keep; ++i) {
      p[order[i]] = std::exp((x[order[i]] - x[order[0]]) / params.temperature);
      total += p[order[i]];
    }
    double mass = 0;
    for (size_t i = 0; i < keep; ++i) {
      if (params.top_p < 1 && mass >= params.top_p * total) keep = i;
      mass += p[order[i]];
    }
    while (keep > 1 && p[order[keep - 1]] < params.min_p * p[order[0]]) --keep;
    for (size_t i = keep; i < x.size(); ++i) p[order[i]] = 0;
    const double left = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& v : p) v /= left;
    return p;
  }
};

Sampler sampler_of(const Oracle& oracle, size_t vocab) {
  Sampler sampler(oracle.params, static_cast<int64_t>(vocab), oracle.prompt);
  for (int32_t t : oracle.output) sampler.append(t);
  return sampler;
}

// Draws at many positions and compares every one with the oracle's distribution, inverted at the same uniform number
// (draws within 1e-5 of a border between two tokens are left out).
void expect_draws_of(const Oracle& oracle, const std::vector<float>& logits, int draws) {
  ASSERT_TRUE(validate(oracle.params, static_cast<int64_t>(logits.size())).ok());
  const std::vector<double> p = oracle.distribution(logits);
  std::vector<double> cumulative(p.size());
  std::partial_sum(p.begin(), p.end(), cumulative.begin());
  Sampler sampler = sampler_of(oracle, logits.size());
  int compared = 0;
  for (int position = 0; position < draws; ++position) {
    const double u = uniform(oracle.params.seed, static_cast<uint64_t>(position));
    const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), u);
    if (at == cumulative.end() || *at - u < 1e-5 || (at != cumulative.begin() && u - at[-1] < 1e-5)) continue;
    std::vector<float> row = logits;
    ASSERT_EQ(sampler.sample(row, position).token, at - cumulative.begin()) << "position " << position;
    ++compared;
  }
  EXPECT_GT(compared, draws / 2);
}

// Pearson's statistic of `counts` against `p` over the tokens that can occur; a token that cannot fails the test.
double chi_square(const std::vector<int>& counts, const std::vector<double>& p, int& freedom) {
  const double n = std::accumulate(counts.begin(), counts.end(), 0.0);
  double sum = 0;
  freedom = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " has probability 0";
      continue;
    }
    sum += (counts[i] - n * p[i]) * (counts[i] - n * p[i]) / (n * p[i]);
    ++freedom;
  }
  return sum;
}
// Above it lies about one in 10^5 samples of chi-square (Wilson and Hilferty's approximation).
double chi_square_limit(int freedom) {
  const double a = 2.0 / (9.0 * freedom);
  return freedom * std::pow(1 - a + 4.265 * std::sqrt(a), 3);
}
void expect_distributed(const std::vector<int>& counts, const std::vector<double>& p) {
  int freedom = 0;
  const double statistic = chi_square(counts, p, freedom);
  EXPECT_LT(statistic, chi_square_limit(freedom)) << freedom << " degrees of freedom";
}

TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {
  using Four = std::array<uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformNumbersFillTheIntervalEvenly) {
  std::vector<int> counts(64);
  for (uint64_t i = 0; i < 64000; ++i) {
    const double u = uniform(7, i);
    ASSERT_TRUE(u >= 0 && u < 1);
    ++counts[static_cast<size_t>(u * 64)];
  }
  expect_distributed(counts, std::vector<double>(64, 1.0 / 64));
}

TEST(Sampler, TemperatureZeroTakesTheLargestLogitAndTheLowerOfEqualIds) {
  for (size_t vocab : {1, 2, 15, 16, 17, 255, 256, 257, 5000}) {
    std::vector<float> logits = random_logits(vocab, static_cast<uint32_t>(vocab));
    const auto top = std::max_element(logits.begin(), logits.end());
    const auto expected = top - logits.begin();
    logits.back() = *top;  // a tie
    Sampler sampler({}, static_cast<int64_t>(vocab), {});
    EXPECT_EQ(sampler.sample(logits, 3).token, expected) << vocab;
  }
}

TEST(Sampler, MarginIsTheDistanceOfTheTwoLargestLogits) {
  for (size_t first : {0, 5, 255, 256, 599})
    for (size_t second : {1, 16, 21, 239, 300, 598}) {
      std::vector<float> logits(600, -1.0f);
      logits[first] = 4.0f;
      logits[second] = 3.5f;
      EXPECT_EQ(Sampler({}, 600, {}).sample(logits, 0).margin, 0.5f) << first << " " << second;
    }
}

TEST(Sampler, NanIsNeverChosen) {
  for (float temperature : {0.0f, 1.0f}) {
    std::vector<float> logits(300, kNan);
    logits[290] = -3;
    Sampler sampler({.temperature = temperature}, 300, {});
    EXPECT_EQ(sampler.sample(logits, 0).token, 290);
  }
}

TEST(Sampler, ARowWithoutANumberGivesNoToken) {
  for (float x : {kNan, -kInf})
    for (float temperature : {0.0f, 1.0f}) {
      std::vector<float> logits(300, x);
      Sampler sampler({.temperature = temperature, .top_k = 4, .logprobs = 2}, 300, {});
      EXPECT_EQ(sampler.sample(logits, 0).token, -1);
    }
}

TEST(Sampler, AnInfiniteLogitWins) {
  std::vector<float> logits = random_logits(300, 1);
  logits[77] = kInf;
  EXPECT_EQ(Sampler({.temperature = 1}, 300, {}).sample(logits, 0).token, 77);
}

// One parameter at a time, then all of them; small rows and rows of several chunks, flat and peaked.
struct Case {
  const char* name;
  SamplingParams params;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class SamplerCases : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    EachParameter, SamplerCases,
    testing::Values(
        Case{"plain", {.temperature = 1}}, Case{"cool", {.temperature = 0.3f}}, Case{"hot", {.temperature = 5}},
        Case{"nearly_greedy", {.temperature = 1e-30f}}, Case{"top_k_1", {.temperature = 1, .top_k = 1}},
        Case{"top_k_2", {.temperature = 1, .top_k = 2}}, Case{"top_k_40", {.temperature = 1, .top_k = 40}},
        Case{"top_k_past_the_vocabulary", {.temperature = 1, .top_k = 1 << 30}},
        Case{"top_p_half", {.temperature = 1, .top_p = 0.5f}}, Case{"top_p_most", {.temperature = 1, .top_p = 0.95f}},
        Case{"top_p_nearly_all", {.temperature = 2, .top_p = 0.99999f}},
        Case{"top_p_nothing", {.temperature = 1, .top_p = 1e-9f}},
        Case{"min_p_tenth", {.temperature = 1, .min_p = 0.1f}}, Case{"min_p_all", {.temperature = 1, .min_p = 1}},
        Case{"min_p_small", {.temperature = 2, .min_p = 1e-4f}},
        Case{"repetition", {.temperature = 1, .repetition_penalty = 1.7f}},
        Case{"repetition_reward", {.temperature = 1, .repetition_penalty = 0.6f}},
        Case{"presence", {.temperature = 1, .presence_penalty = 1.5f}},
        Case{"frequency", {.temperature = 1, .frequency_penalty = 0.8f}},
        Case{"bias", {.temperature = 1, .logit_bias = {{3, 4.0f}, {5, -100.0f}, {0, 2.0f}}}},
        Case{"seed", {.temperature = 1, .seed = 0xfedcba9876543210u}},
        Case{"top_k_and_top_p", {.temperature = 1, .top_k = 20, .top_p = 0.7f}},
        Case{"all",
             {.temperature = 0.8f,
              .top_k = 50,
              .top_p = 0.9f,
              .min_p = 0.02f,
              .repetition_penalty = 1.2f,
              .presence_penalty = 0.5f,
              .frequency_penalty = 0.3f,
              .logit_bias = {{1, 1.0f}, {2, 2.5f}},
              .seed = 99}}),
    [](const auto& info) { return info.param.name; });

TEST_P(SamplerCases, EveryDrawIsTheOracles) {
  for (size_t vocab : {7, 300, 2000}) {
    for (float spread : {0.2f, 3.0f}) {
      SCOPED_TRACE(testing::Message() << "vocabulary " << vocab << ", spread " << spread);
      Oracle oracle{GetParam().params, {1, 2, 2, 6, 4}, {3, 3, 3, 0, 6}};
      expect_draws_of(oracle, random_logits(vocab, 11, spread), 300);
    }
  }
}

TEST_P(SamplerCases, MarginIsThatOfThePenalisedLogits) {
  const Oracle oracle{GetParam().params, {1, 2, 2, 6, 4}, {3, 3, 3, 0, 6}};
  const std::vector<float> logits = random_logits(300, 12);
  std::vector<double> x = oracle.adjusted(logits);
  std::sort(x.begin(), x.end(), std::greater<>());
  std::vector<float> row = logits;
  EXPECT_NEAR(sampler_of(oracle, 300).sample(row, 0).margin, x[0] - x[1], 1e-5);
}

// The mass of the likeliest 512 does not reach top_p here, so the search has to widen.
TEST(Sampler, TopPOfAFlatDistributionKeepsTheRightNumberOfTokens) {
  const size_t vocab = 20000;
  Oracle oracle{{.temperature = 1, .top_p = 0.6f}, {}, {}};
  expect_draws_of(oracle, random_logits(vocab, 5, 0.01f), 400);
}

TEST(Sampler, CutsBetweenEqualLogitsKeepTheLowerIds) {
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1, .top_k = 10}, SamplingParams{.temperature = 1, .top_p = 0.0099f}}) {
    std::vector<int> counts(1000);
    for (int64_t position = 0; position < 500; ++position) {
      std::vector<float> logits(1000, 2.5f);
      ++counts[static_cast<size_t>(Sampler(params, 1000, {}).sample(logits, position).token)];
    }
    for (size_t i = 0; i < 10; ++i) EXPECT_GT(counts[i], 0) << i;
    for (size_t i = 10; i < 1000; ++i) EXPECT_EQ(counts[i], 0) << i;
  }
}

TEST(Sampler, DrawsAreDistributedAsTheOracleSays) {
  const Oracle oracle{{.temperature = 0.9f, .top_k = 12, .top_p = 0.97f, .seed = 5}, {}, {}};
  const std::vector<float> logits = random_logits(20, 3, 1.5f);
  std::vector<int> counts(20);
  Sampler sampler = sampler_of(oracle, 20);
  for (int64_t position = 0; position < 40000; ++position) {
    std::vector<float> row = logits;
    ++counts[static_cast<size_t>(sampler.sample(row, position).token)];
  }
  expect_distributed(counts, oracle.distribution(logits));
}

TEST(SampleOrAccept, OutcomeIsDistributedAsWithoutADraft) {
  const std::vector<float> logits = random_logits(12, 8, 1.2f);
  for (const int32_t draft : {0, 5, 11}) {
    const Oracle oracle{{.temperature = 1.1f, .top_p = 0.98f, .seed = 17u + static_cast<uint64_t>(draft)}, {}, {}};
    const std::vector<double> p = oracle.distribution(logits);
    Sampler sampler = sampler_of(oracle, 12);
    std::vector<int> counts(12), rejected(12);
    int accepts = 0;
    for (int64_t position = 0; position < 30000; ++position) {
      std::vector<float> row = logits;
      bool accepted = false;
      const int32_t token = sampler.sample_or_accept(row, position, draft, accepted).token;
      ASSERT_EQ(accepted, token == draft);
      ++counts[static_cast<size_t>(token)];
      if (!accepted) ++rejected[static_cast<size_t>(token)];
      accepts += accepted;
    }
    expect_distributed(counts, p);
    // Accepted with probability p(draft), and after a rejection p without the draft.
    const double expected = p[static_cast<size_t>(draft)];
    EXPECT_NEAR(accepts / 30000.0, expected, 5 * std::sqrt(expected * (1 - expected) / 30000) + 1e-12);
    std::vector<double> rest = p;
    rest[static_cast<size_t>(draft)] = 0;
    for (double& v : rest) v /= 1 - expected;
    expect_distributed(rejected, rest);
  }
}

TEST(SampleOrAccept, DraftsDoNotChangeTheTokens) {
  const std::vector<float> logits = random_logits(50, 21);
  Sampler sampler({.temperature = 1, .top_p = 0.9f, .seed = 4}, 50, {});
  for (int64_t position = 0; position < 200; ++position) {
    std::vector<float> alone = logits, drafted = logits;
    bool accepted = false;
    EXPECT_EQ(sampler.sample(alone, position).token,
              sampler.sample_or_accept(drafted, position, static_cast<int32_t>(position % 50), accepted).token);
  }
}

TEST(SampleOrAccept, GreedyAcceptsTheArgmaxAlone) {
  const std::vector<float> logits = random_logits(400, 2);
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  Sampler sampler({}, 400, {});
  for (int32_t draft = -1; draft < 400; ++draft) {
    std::vector<float> row = logits;
    bool accepted = false;
    EXPECT_EQ(sampler.sample_or_accept(row, 9, draft, accepted).token, best);
    EXPECT_EQ(accepted, draft == best);
  }
}

TEST(Sampler, ADrawDependsOnSeedAndPositionAlone) {
  const std::vector<float> logits = random_logits(1000, 6);
  const auto draw = [&](uint64_t seed, int64_t position, int draws_before) {
    Sampler sampler({.temperature = 1.5f, .seed = seed}, 1000, {});
    std::vector<float> row;
    for (int i = 0; i < draws_before; ++i) sampler.sample(row = logits, i);
    return sampler.sample(row = logits, position).token;
  };
  std::set<int32_t> by_position, by_seed;
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(draw(1, i, 0), draw(1, i, 7));
    by_position.insert(draw(1, i, 0));
    by_seed.insert(draw(static_cast<uint64_t>(i), 3, 0));
  }
  EXPECT_GT(by_position.size(), 10u);
  EXPECT_GT(by_seed.size(), 10u);
}

TEST(Sampler, LogprobsAreThoseOfTheModelWhateverTheParameters) {
  const size_t vocab = 700;
  std::vector<float> logits = random_logits(vocab, 13);
  logits[600] = logits[20] = *std::max_element(logits.begin(), logits.end()) + 1;
  double total = 0;
  for (float x : logits) total += std::exp(double{x});
  std::vector<int32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const auto expected = [&](int32_t t) { return double{logits[static_cast<size_t>(t)]} - std::log(total); };
  Oracle oracle{{.temperature = 0.5f, .top_k = 3, .repetition_penalty = 1.5f, .frequency_penalty = 1, .logprobs = 20},
                {20, 600, 44},
                {600, 44, 44}};
  oracle.params.logit_bias = {{44, 30.0f}};
  for (int32_t n : {0, 1, 5, 20}) {
    oracle.params.logprobs = n;
    std::vector<float> row = logits;
    const Sampled sampled = sampler_of(oracle, vocab).sample(row, 0);
    EXPECT_EQ(sampled.token, 44);  // by its bias
    EXPECT_NEAR(sampled.logprob, expected(44), 1e-4);
    ASSERT_EQ(sampled.top.size(), static_cast<size_t>(n));
    for (size_t i = 0; i < sampled.top.size(); ++i) {
      EXPECT_EQ(sampled.top[i].token, order[i]);
      EXPECT_NEAR(sampled.top[i].logprob, expected(order[i]), 1e-4);
    }
  }
}

TEST(Sampler, MoreLogprobsThanTokensGivesThemAll) {
  std::vector<float> logits = {1, 2, 3};
  EXPECT_EQ(Sampler({.logprobs = 20}, 3, {}).sample(logits, 0).top.size(), 3u);
}

TEST(Sampler, PromptTokensOutsideTheVocabularyCountForNothing) {
  const std::vector<int32_t> prompt = {-1, 1 << 30, 2};
  Sampler sampler({.repetition_penalty = 2}, 3, prompt);
  std::vector<float> logits = {1, 2, 3};
  EXPECT_EQ(sampler.sample(logits, 0).token, 1);
}

// case 40 (the sampler's part), case 41
TEST(Validate, RefusesWhatIsOutOfRangeAndNamesFieldValueAndRange) {
  struct Bad {
    void (*spoil)(SamplingParams&);
    std::vector<const char*> words;
  };
  const Bad bads[] = {
      {[](SamplingParams& p) { p.temperature = -0.5f; }, {"temperature is -0.5", ">= 0"}},
      {[](SamplingParams& p) { p.temperature = kNan; }, {"temperature is nan"}},
      {[](SamplingParams& p) { p.temperature = kInf; }, {"temperature is inf", "finite"}},
      {[](SamplingParams& p) { p.top_k = -1; }, {"top_k is -1", ">= 0"}},
      {[](SamplingParams& p) { p.top_p = 0; }, {"top_p is 0", "(0, 1]"}},
      {[](SamplingParams& p) { p.top_p = 1.5f; }, {"top_p is 1.5"}},
      {[](SamplingParams& p) { p.top_p = kNan; }, {"top_p is nan"}},
      {[](SamplingParams& p) { p.min_p = -0.1f; }, {"min_p is -0.1", "[0, 1]"}},
      {[](SamplingParams& p) { p.min_p = 2; }, {"min_p is 2"}},
      {[](SamplingParams& p) { p.min_p = kNan; }, {"min_p is nan"}},
      {[](SamplingParams& p) { p.repetition_penalty = 0; }, {"repetition_penalty is 0", "[0.01, 100]"}},
      {[](SamplingParams& p) { p.repetition_penalty = kNan; }, {"repetition_penalty is nan"}},
      {[](SamplingParams& p) { p.presence_penalty = 2.5f; }, {"presence_penalty is 2.5", "[-2, 2]"}},
      {[](SamplingParams& p) { p.presence_penalty = kNan; }, {"presence_penalty is nan"}},
      {[](SamplingParams& p) { p.frequency_penalty = -3; }, {"frequency_penalty is -3", "[-2, 2]"}},
      {[](SamplingParams& p) { p.frequency_penalty = kNan; }, {"frequency_penalty is nan"}},
      {[](SamplingParams& p) { p.logit_bias = {{100, 1.0f}}; }, {"logit_bias", "token 100", "[0, 99]"}},
      {[](SamplingParams& p) { p.logit_bias = {{-1, 1.0f}}; }, {"token -1"}},
      {[](SamplingParams& p) { p.logit_bias = {{5, kNan}}; }, {"token 5", "nan", "[-100, 100]"}},
      {[](SamplingParams& p) { p.logit_bias = {{5, 101.0f}}; }, {"token 5", "101"}},
      {[](SamplingParams& p) { p.logit_bias = {{5, 1.0f}, {6, 1.0f}, {5, 2.0f}}; }, {"token 5", "more than once"}},
      {[](SamplingParams& p) { p.logprobs = 21; }, {"logprobs is 21", "[0, 20]"}},
      {[](SamplingParams& p) { p.logprobs = -2; }, {"logprobs is -2"}},
  };
  for (const Bad& bad : bads) {
    SamplingParams params;
    bad.spoil(params);
    const Status status = validate(params, 100);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const char* word : bad.words) EXPECT_THAT(status.message(), HasSubstr(word));
  }
}

TEST(Validate, TakesTheEndsOfEveryRange) {
  const SamplingParams low{.temperature = 0,
                           .top_k = 0,
                           .top_p = 1e-9f,
                           .min_p = 0,
                           .repetition_penalty = 0.01f,
                           .presence_penalty = -2,
                           .frequency_penalty = -2,
                           .logit_bias = {{0, -100.0f}},
                           .logprobs = -1};
  const SamplingParams high{.temperature = 1e30f,
                            .top_k = 1 << 30,
                            .top_p = 1,
                            .min_p = 1,
                            .repetition_penalty = 100,
                            .presence_penalty = 2,
                            .frequency_penalty = 2,
                            .logit_bias = {{99, 100.0f}},
                            .logprobs = 20};
  EXPECT_TRUE(validate(low, 100).ok());
  EXPECT_TRUE(validate(high, 100).ok());
}

}  // namespace
}  // namespace oasis::engine
