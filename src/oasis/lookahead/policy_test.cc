#include "oasis/lookahead/policy.h"

#include <gtest/gtest.h>

namespace oasis::lookahead {
namespace {

CoreConfig config(FetchMode mode, int32_t k, double ratio) {
  return {.shape = {.layers = 4, .kv_heads = 2, .head_dim = 64},
          .attend_blocks = k,
          .resident_blocks = k,
          .fetch_ratio = ratio,
          .fetch = mode};
}

TEST(FetchPolicy, TheCapIsTheCeilingOfTheRatio) {
  EXPECT_EQ(config(FetchMode::kBounded, 128, .05).cap(), 7);
  EXPECT_EQ(config(FetchMode::kBounded, 140, .05).cap(), 7);  // 7.000000000000001 in doubles
  EXPECT_EQ(config(FetchMode::kBounded, 8, 0).cap(), 0);
  EXPECT_EQ(config(FetchMode::kBounded, 8, 1).cap(), 8);
}

TEST(FetchPolicy, BoundedAllowsItsCapForEveryTokenAdvanced) {
  const auto policy = make_policy(config(FetchMode::kBounded, 128, .05));
  EXPECT_EQ(policy->limits(1).cap, 7);
  EXPECT_EQ(policy->limits(5).cap, 35);
  EXPECT_FALSE(policy->limits(1).wait_for_absent);
}

TEST(FetchPolicy, ExactAllowsAllOfKAndWaits) {
  const auto policy = make_policy(config(FetchMode::kExact, 20, .05));
  EXPECT_EQ(policy->limits(1).cap, 20);
  EXPECT_TRUE(policy->limits(1).wait_for_absent);
  EXPECT_TRUE(policy->limits(1).demand);
}

// One step in which `taken` block-heads of the budget were used.
void step(FetchPolicy& policy, int64_t taken, const StepFeedback& feedback) {
  policy.begin_step();
  *policy.budget() -= taken;
  policy.end_step(feedback);
}

TEST(FetchPolicy, AdaptiveStartsWithTheCapsOfAllHeads) {
  const auto policy = make_policy(config(FetchMode::kAdaptive, 20, .1));
  policy->begin_step();
  EXPECT_EQ(*policy->budget(), 2 * 4 * 2);
}

TEST(FetchPolicy, AdaptiveBudgetsWhatTheLinkCarriesInTheStepWithoutItsWait) {
  const auto policy = make_policy(config(FetchMode::kAdaptive, 20, .1));
  step(*policy, 0, {.seconds = .01, .wait_seconds = .004, .transfer_seconds = .001, .fetched = 100});
  policy->begin_step();
  EXPECT_EQ(*policy->budget(), 600);  // 100,000 a second for 6 ms
}

TEST(FetchPolicy, AdaptiveIsChoosierWhenTheBudgetRanOutAndLessSoWhenItWasNotUsed) {
  const auto policy = make_policy(config(FetchMode::kAdaptive, 20, .1));
  const float before = policy->limits(1).margin_threshold;
  const StepFeedback feedback{.seconds = .01, .transfer_seconds = .01, .fetched = 100, .refused = 3};
  for (int i = 0; i < 5; ++i) step(*policy, 1000, feedback);
  const float choosy = policy->limits(1).margin_threshold;
  EXPECT_GT(choosy, before);
  step(*policy, 10, feedback);
  EXPECT_LT(policy->limits(1).margin_threshold, choosy);
}

TEST(FetchPolicy, AdaptiveNeverBudgetsLessThanOneBlockHead) {
  const auto policy = make_policy(config(FetchMode::kAdaptive, 20, .1));
  step(*policy, 0, {.seconds = .01, .wait_seconds = .02, .transfer_seconds = 1, .fetched = 1});
  policy->begin_step();
  EXPECT_EQ(*policy->budget(), 1);
}

TEST(CoreConfig, ValidationNamesTheValueAndTheRange) {
  CoreConfig good = config(FetchMode::kBounded, 8, .05);
  good.max_blocks = 10;
  EXPECT_TRUE(validate(good).ok());
  const auto refused = [&](auto change) {
    CoreConfig c = good;
    change(c);
    const Status status = validate(c);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(refused([](CoreConfig& c) { c.resident_blocks = 7; }),
            "resident blocks 7: must be at least the 8 that are attended");
  EXPECT_EQ(refused([](CoreConfig& c) { c.shape.block_size = 24; }), "block size 24: must be 16, 32 or 64");
  EXPECT_EQ(refused([](CoreConfig& c) { c.fetch_ratio = 1.5; }), "fetch ratio 1.5: must lie in 0 .. 1");
  EXPECT_EQ(refused([](CoreConfig& c) { c.fetch_ratio = -1; }), "fetch ratio -1: must lie in 0 .. 1");
  EXPECT_EQ(refused([](CoreConfig& c) { c.max_draft_rows = 10; }), "10 draft rows a step: must lie in 1 .. 9");
  EXPECT_EQ(refused([](CoreConfig& c) { c.beta = 0; }), "beta 0: must lie in (0, 1]");
}

}  // namespace
}  // namespace oasis::lookahead
