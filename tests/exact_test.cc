// The exact policy is exact: what lies where, and from which tier it comes, does not change a bit.
#include <filesystem>

#include "oasis/engine/engine_test_util.h"

namespace oasis {
namespace {

using engine::EngineConfig;
using engine::testing::Output;

constexpr int32_t kPrompt = 400, kOutput = 256, kBlocks = (kPrompt + kOutput) / 16;  // 41

class Exact : public testing::TestWithParam<kv::KvType> {
 protected:
  static EngineConfig exact(double resident_ratio);
};

EngineConfig Exact::exact(double resident_ratio) {
  EngineConfig c;
  c.kv_type = GetParam();
  c.max_context = kPrompt + kOutput;
  c.attention = engine::Attention::kSparse;
  c.fetch = lookahead::FetchMode::kExact;
  c.top_k_blocks = 8;
  c.resident_ratio = resident_ratio;
  c.draft = "ngram";
  return c;
}

engine::Request request(uint32_t seed) {
  std::mt19937 random(seed);
  engine::Request r;
  r.prompt = engine::testing::random_tokens(random, kPrompt);
  r.max_tokens = kOutput;
  return r;
}

// Two runs with the same output, bit for bit, of which the second really fetched.
void expect_equal_bits(const EngineConfig& all, const EngineConfig& some, const engine::Request& r) {
  const auto roomy = engine::testing::make_engine(all), tight = engine::testing::make_engine(some);
  EXPECT_GE(roomy->plan().core.resident_blocks, kBlocks);
  EXPECT_LE(tight->plan().core.resident_blocks, kBlocks / 3);
  const Output want = engine::testing::run(*roomy, r, true), got = engine::testing::run(*tight, r, true);
  ASSERT_EQ(want.tokens.size(), static_cast<size_t>(kOutput));
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.logits, want.logits);
  EXPECT_EQ(roomy->metrics().core.blocks, 0);
  const auto stats = tight->metrics().core;
  EXPECT_GT(stats.demand, 0);
  EXPECT_GT(stats.admitted, 0);
}

TEST_P(Exact, TokensAndLogitsDoNotDependOnTheSizeOfTheFastTier) { expect_equal_bits(exact(6), exact(1.5), request(1)); }

TEST_P(Exact, TokensAndLogitsDoNotDependOnTheTier) {
  EngineConfig file = exact(1.25);
  file.capacity_file = std::filesystem::temp_directory_path() / fmt::format("oasis-exact-{}", ::getpid());
  file.capacity_memory = file.kv_type == kv::KvType::kBf16 ? 512 << 10 : 256 << 10;  // a fifth of what 41 blocks take
  expect_equal_bits(exact(6), file, request(2));
}

TEST_P(Exact, TokensAndLogitsDoNotDependOnPrefetching) {
  EngineConfig none = exact(1);
  none.hooks.predict = [](int32_t, int64_t, int32_t, int32_t*, int32_t* counts, int64_t) {
    for (int32_t h = 0; h < engine::testing::tiny_config().kv_heads; ++h) counts[h] = 0;
  };
  const auto a = engine::testing::make_engine(exact(6)), b = engine::testing::make_engine(none);
  const Output want = engine::testing::run(*a, request(3), true), got = engine::testing::run(*b, request(3), true);
  EXPECT_EQ(got.logits, want.logits);
  EXPECT_EQ(b->metrics().core.admitted, 0);
  EXPECT_GT(b->metrics().core.demand, 0);
}

TEST_P(Exact, PreemptionDoesNotChangeABit) {
  const auto a = engine::testing::make_engine(exact(1.25)), b = engine::testing::make_engine(exact(1.25));
  const Output want = engine::testing::run(*a, request(4), true);
  Output got;
  engine::Request r = request(4);
  engine::testing::report_to(got, r, true);
  const auto id = engine::testing::submit(*b, std::move(r));
  for (int64_t step = 0; b->step(); ++step) {
    if (step % 7 == 3) b->preempt_for_test(id);
  }
  EXPECT_GE(b->metrics().preemptions, 20);
  EXPECT_EQ(got.logits, want.logits);
}

// Lists and dense lists are split at the same logical borders, and every block is read.
TEST_P(Exact, WithKAsLargeAsTheContextItIsDense) {
  EngineConfig all = exact(1), dense = exact(1);
  all.top_k_blocks = kBlocks;
  dense.attention = engine::Attention::kDense;
  dense.fetch = lookahead::FetchMode::kBounded;
  std::mt19937 random(5);
  engine::Request r = request(5);
  r.forced = engine::testing::random_tokens(random, kOutput);
  const auto a = engine::testing::make_engine(all), b = engine::testing::make_engine(dense);
  const Output got = engine::testing::run(*a, r, true), want = engine::testing::run(*b, r, true);
  ASSERT_EQ(got.logits.size(), want.logits.size());
  for (size_t i = 0; i < want.logits.size(); ++i) {
    for (size_t t = 0; t < want.logits[i].size(); ++t) {
      ASSERT_NEAR(got.logits[i][t], want.logits[i][t], 1e-3) << "output " << i << " token " << t;
    }
  }
}

TEST_P(Exact, BoundedWithRoomForAllIsDense) {
  EngineConfig all = exact(1), dense = exact(1);
  all.top_k_blocks = kBlocks;
  all.fetch = lookahead::FetchMode::kBounded;
  dense.attention = engine::Attention::kDense;
  dense.fetch = lookahead::FetchMode::kBounded;
  const auto a = engine::testing::make_engine(all), b = engine::testing::make_engine(dense);
  const Output got = engine::testing::run(*a, request(6), true), want = engine::testing::run(*b, request(6), true);
  EXPECT_EQ(got.tokens, want.tokens);
}

std::string type_name(const testing::TestParamInfo<kv::KvType>& info) { return std::string(kv::to_string(info.param)); }
INSTANTIATE_TEST_SUITE_P(Kv, Exact, testing::Values(kv::KvType::kBf16, kv::KvType::kFp8E4M3), type_name);

}  // namespace
}  // namespace oasis
