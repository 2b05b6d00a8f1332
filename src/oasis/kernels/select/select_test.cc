// Single rules by hand.
#include "oasis/kernels/select/select.h"

#include <set>

#include "oasis/kernels/select/select_test_util.h"

namespace oasis::kernels {
namespace {

using namespace select_test;

// One head with R = K = 3, residents 0 (last predicted 5), 1 (3), 2 (3), open block 8, step 6, candidates 8.
class OneHead {
 protected:
  OneHead() : map_(16, 6), call_(1, 1, 8) {
    map_.put(0, 0, 5);
    map_.put(1, 1, 3);
    map_.put(2, 2, 3);
    map_.put(8, 3, HeadMap::kOpen);
    call_.maps[0] = {map_.view()};
    call_.items[0] = {.page_of_slot = pages_,
                      .slots = 6,
                      .step = 6,
                      .resident_limit = 3,
                      .attend_limit = 3,
                      .candidates = 8,
                      .sealed_begin = 8,
                      .open_end = 9,
                      .cap = 8,
                      .margin_threshold = kNoThreshold};
  }
  SelectItem& item() { return call_.items[0]; }
  void select(const std::vector<int32_t>& p, const std::vector<float>& scores = {}) {
    call_.predict(0, p, scores.empty() ? std::vector<float>(p.size()) : scores);
    kernels_for(backend_).select(test_device(backend_).foreground(), call_.params());
  }
  void demand(const std::vector<int32_t>& t) {
    call_.predict(0, t, {});
    kernels_for(backend_).demand(test_device(backend_).foreground(), call_.params());
  }
  using Blocks = std::vector<int32_t>;
  Blocks residents() const {
    Blocks out;
    for (auto [block, last] : map_.read().residents) out.push_back(block);
    return out;
  }

  const int32_t pages_[6] = {10, 11, 12, 13, 14, 15};
  OwnedMap map_;
  Call call_;
  Backend backend_ = Backend::kCpu;
};

class SelectOneHead : public OneHead, public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    OASIS_SKIP_WITHOUT(GetParam());
    backend_ = GetParam();
  }
};

TEST_P(SelectOneHead, TheResidentPredictedLongestAgoGoesAndTiesGoToTheLowerBlock) {
  select({7, 0});
  EXPECT_EQ(residents(), (Blocks{0, 2, 7}));
  EXPECT_EQ(call_.admitted(0), Blocks{7});
}

TEST_P(SelectOneHead, AdmissionFollowsTheRankUnderTheCap) {
  item().cap = 2;
  select({6, 5, 4});
  EXPECT_EQ(call_.admitted(0), (Blocks{6, 5}));
  EXPECT_EQ(residents(), (Blocks{0, 5, 6}));
  EXPECT_EQ(call_.stats, (Blocks{0, 3, 1, 0}));
}

TEST_P(SelectOneHead, ACapOfZeroFetchesNothing) {
  item().cap = 0;
  select({6, 5, 4});
  EXPECT_TRUE(call_.admitted(0).empty());
  EXPECT_EQ(residents(), (Blocks{0, 1, 2}));
  EXPECT_EQ(call_.listed(0), (Blocks{0, 1, 2, 8}));
}

TEST_P(SelectOneHead, FillersAreThoseLastPredictedLatestAndTiesGoToTheHigherBlock) {
  item().cap = 0;
  item().attend_limit = 2;
  select({0, 5});
  EXPECT_EQ(call_.listed(0), (Blocks{0, 2, 8}));
  EXPECT_EQ(map_.read().residents.at(2), 3);  // not touched
}

TEST_P(SelectOneHead, ABlockSealedNowJoinsAtNoCostAndPushesOneOut) {
  item().candidates = 9;
  item().open_end = 10;
  item().cap = 0;
  select({0, 1, 2});
  // The sealed block is the only one outside P.
  EXPECT_EQ(residents(), (Blocks{0, 1, 2}));
  EXPECT_EQ(map_.read().open, (std::set<int32_t>{9}));
  EXPECT_EQ(call_.listed(0), (Blocks{0, 1, 2, 9}));
}

TEST_P(SelectOneHead, AnAbsentPartIsWantedAndAdmissionGoesOnDownTheRank) {
  std::vector<uint8_t> present(16, 1);
  present[7] = present[5] = present[3] = 0;
  item().present = present.data();
  item().cap = 2;
  item().resident_limit = 5;
  item().slots = 6;
  map_.slot_of_block[8] = map_.block_of_slot[3] = -1;
  item().open_end = 8;
  select({7, 6, 5, 4, 3});
  EXPECT_EQ(call_.wanted_blocks(0), Blocks{7});  // among the first two misses
  EXPECT_EQ(call_.admitted(0), (Blocks{6, 4}));  // absent ones do not use up the cap
  EXPECT_EQ(call_.stats, (Blocks{0, 5, 1, 2}));  // the last is past the cap
}

TEST_P(SelectOneHead, ExactAdmitsAbsentParts) {
  std::vector<uint8_t> present(16, 0);
  item().present = present.data();
  item().wait_for_absent = true;
  select({7, 6});
  EXPECT_EQ(call_.admitted(0), (Blocks{7, 6}));
  EXPECT_TRUE(call_.wanted_blocks(0).empty());
}

TEST_P(SelectOneHead, FreeSlotsAreUsedBeforeThoseOfVictims) {
  select({7, 6, 0});
  const auto& f = call_.fetches;
  EXPECT_EQ(f[0].slot, 4);
  EXPECT_EQ(f[1].slot, 5);
  EXPECT_EQ(map_.block_of_slot[1], -1);
}

TEST_P(SelectOneHead, AnOpenBlockTakesASlotThatAVictimLeftBehind) {
  item().resident_limit = 5;
  map_.put(3, 4, 6);
  map_.put(4, 5, 6);  // no slot is free
  item().resident_limit = 4;
  item().open_end = 10;
  select({0, 2});
  EXPECT_EQ(residents(), (Blocks{0, 2, 3, 4}));
  EXPECT_EQ(map_.slot_of_block[9], 1);
  EXPECT_EQ(map_.last_predicted[1], HeadMap::kOpen);
}

TEST_P(SelectOneHead, NothingIsPredictedBeforeTheFirstBlockIsSealed) {
  OwnedMap fresh(4, 6);
  fresh.put(0, 2, HeadMap::kOpen);
  call_.maps[0] = {fresh.view()};
  item().candidates = item().sealed_begin = 0;
  item().open_end = 2;
  select({});
  EXPECT_EQ(call_.listed(0), (Blocks{0, 1}));
  EXPECT_EQ(call_.fetch_count[0], 0);
}

TEST_P(SelectOneHead, BelowTheThresholdOnlyTheFirstIsAdmitted) {
  item().margin_threshold = 100;
  select({7, 6, 5}, {9, 8, 1});
  EXPECT_EQ(call_.admitted(0), Blocks{7});
  EXPECT_EQ(call_.stats, (Blocks{0, 3, 2, 0}));
}

TEST_P(SelectOneHead, TheMarginIsInUnitsOfTheRunningSpread) {
  item().margin_threshold = 0.5f;
  call_.spread[0] = 16;
  select({7, 6, 5}, {17, 10, 1});  // spread of this step: 17 - 1 = 16; margins 1, 9/16, 0
  EXPECT_EQ(call_.admitted(0), (Blocks{7, 6}));
  EXPECT_FLOAT_EQ(call_.spread[0], 16);
}

TEST_P(SelectOneHead, TheSpreadRunsFromItsFirstValue) {
  item().margin_threshold = 0;
  select({7, 6, 5}, {17, 10, 1});
  EXPECT_FLOAT_EQ(call_.spread[0], 16);
  select({7, 6, 5}, {33, 10, 1});
  EXPECT_FLOAT_EQ(call_.spread[0], 17);
}

TEST_P(SelectOneHead, NaNScoresAreBelowAnyThreshold) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  item().margin_threshold = 0;
  select({7, 6, 5}, {2, 1, nan});
  EXPECT_EQ(call_.admitted(0), Blocks{7});
  EXPECT_EQ(call_.spread[0], 0);
}

TEST_P(SelectOneHead, TheFirstOverdrawsTheBudgetAndTheRestDoNot) {
  int64_t budget = 0;
  call_.budget = &budget;
  select({7, 6, 5}, {3, 2, 1});
  EXPECT_EQ(call_.admitted(0), Blocks{7});
  EXPECT_EQ(budget, -1);
}

class Select : public testing::TestWithParam<Backend> {};

TEST_P(Select, TheBudgetIsSharedByAllHeads) {
  OASIS_SKIP_WITHOUT(GetParam());
  constexpr size_t kItems = 400;
  for (int threads : {1, 4}) {
    std::vector<OwnedMap> maps(kItems, OwnedMap(16, 9));
    std::vector<int32_t> pages(9);
    Call call(kItems, 1, 8);
    int64_t budget = 700;
    call.budget = &budget;
    for (size_t i = 0; i < kItems; ++i) {
      call.maps[i] = {maps[i].view()};
      call.items[i] = {.page_of_slot = pages.data(),
                       .slots = 9,
                       .step = 1,
                       .resident_limit = 6,
                       .attend_limit = 4,
                       .candidates = 10,
                       .sealed_begin = 10,
                       .open_end = 11,
                       .cap = 4,
                       .margin_threshold = kNoThreshold};
      call.predict(i, {9, 8, 7, 6}, {4, 3, 2, 1});
    }
    kernels_for(GetParam()).select(test_device(GetParam(), threads).foreground(), call.params());
    const int64_t admitted = std::accumulate(call.fetch_count.begin(), call.fetch_count.end(), int64_t{0});
    EXPECT_EQ(admitted, 700 - budget);
    EXPECT_GE(admitted, 700);
    EXPECT_LE(budget, 0);
    EXPECT_GT(budget, -static_cast<int64_t>(kItems));
    EXPECT_GE(*std::min_element(call.fetch_count.begin(), call.fetch_count.end()), 1);
  }
}

TEST_P(SelectOneHead, DemandBringsInAllOfItWithoutACapAndLeavesOpenBlocksAlone) {
  item().cap = 0;
  demand({7, 8, 2});
  EXPECT_EQ(call_.admitted(0), Blocks{7});
  EXPECT_EQ(residents(), (Blocks{0, 2, 7}));
  EXPECT_EQ(map_.read().residents.at(2), 6);
  EXPECT_EQ(map_.read().open, (std::set<int32_t>{8}));
}

TEST_P(SelectOneHead, ABlockSealedNowSurvivesTheDemandAndJoinsAtSelect) {
  item().candidates = 9;  // block 8 is sealed in this step; its rows still read it, and T fills R
  item().open_end = 10;
  demand({7, 6, 5});
  EXPECT_EQ(residents(), (Blocks{5, 6, 7}));
  EXPECT_EQ(map_.slot_of_block[8], 3);
  select({7, 8, 6});
  EXPECT_EQ(residents(), (Blocks{6, 7, 8}));
  EXPECT_TRUE(call_.admitted(0).empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, SelectOneHead, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);
INSTANTIATE_TEST_SUITE_P(Backends, Select, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

class SelectDeath : public OneHead, public testing::Test {
 protected:
  static void SetUpTestSuite() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
TEST_F(SelectDeath, MorePredictedThanMayBeResidentIsABrokenInvariant) {
  EXPECT_DEATH(select({4, 5, 6, 7}), "only 3 may be resident");
}
TEST_F(SelectDeath, ABlockSealedButNeverOpenIsABrokenInvariant) {
  item().sealed_begin = 7;
  EXPECT_DEATH(select({0}), "block 7 is sealed but was not open");
}
TEST_F(SelectDeath, AnOpenBlockInThePredictionIsABrokenInvariant) {
  EXPECT_DEATH(select({0, 8}), "an open block is predicted");
}
TEST_F(SelectDeath, TooFewSlotsIsABrokenInvariant) {
  item().open_end = 12;
  EXPECT_DEATH(select({0}), "no slot left for block 11");
}

}  // namespace
}  // namespace oasis::kernels
