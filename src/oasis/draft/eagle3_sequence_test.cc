// What an EAGLE-3 drafter keeps of its sequences: sharing, preemption, batches.
#include <gtest/gtest.h>

#include "oasis/draft/eagle3.h"
#include "oasis/draft/make_drafter.h"
#include "oasis/draft/testing/head_files.h"
#include "oasis/draft/testing/scripted_text.h"

namespace oasis::draft {
namespace {

using Drafts = std::vector<std::vector<int32_t>>;

class Eagle3Sequence : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = model::Checkpoint::open(std::string(OASIS_SOURCE_DIR) + "/tests/data/models/llama-hd96");
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    target_.emplace(std::move(opened).value());
    random_head({}, 1).write(folder_.path());
  }
  std::unique_ptr<Drafter> make(int32_t window_tokens = kWindowTokens) {
    return make_eagle3(*device_, folder_.path(), *target_, {.max_sequences = 4, .max_rows = 48}, window_tokens).value();
  }
  Stream& stream() { return device_->foreground(); }

  // Drafts after each token from position `begin` to `end` - 1, four each.
  static Drafts propose(Follower& follower, int begin, int end) {
    Drafts drafts;
    for (int position = begin; position < end; ++position) drafts.push_back(follower.propose(position, 4));
    return drafts;
  }
  // The same in a drafter of its own.
  Drafts alone(const ScriptedText& text, int begin, int end, int32_t window_tokens = 2048) {
    const auto drafter = make(window_tokens);
    EXPECT_TRUE(drafter->attach(0).ok());
    Follower follower(*drafter, stream(), 0, text);
    follower.absorb(begin - 1, 20);
    return propose(follower, begin, end);
  }

  std::unique_ptr<Device> device_ = make_cpu_device(1);
  std::optional<model::Checkpoint> target_;
  HeadFiles::Folder folder_{testing::UnitTest::GetInstance()->current_test_info()->name()};
  const ScriptedText text_{120, 320, 3, 64, 7};
};

TEST_F(Eagle3Sequence, LeavesNothingBehindForTheNextOfItsIndex) {
  const auto drafter = make();
  ASSERT_TRUE(drafter->attach(2).ok());
  Follower before(*drafter, stream(), 2, text_);
  before.absorb(100, 48);
  before.propose(110, 4);
  drafter->detach(2);

  const ScriptedText other(60, 320, 3, 64, 8);
  ASSERT_TRUE(drafter->attach(2).ok());
  Follower after(*drafter, stream(), 2, other);
  after.absorb(19, 20);
  EXPECT_EQ(propose(after, 20, 60), alone(other, 20, 60));
}

TEST_F(Eagle3Sequence, CannotBeAttachedTwiceOrOutsideItsRange) {
  const auto drafter = make();
  EXPECT_TRUE(drafter->attach(3).ok());
  EXPECT_EQ(drafter->attach(3).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(drafter->attach(4).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(drafter->attach(-1).code(), StatusCode::kInvalidArgument);
}

TEST_F(Eagle3Sequence, DraftsTheSameInABatchWhateverTheOthersWant) {
  const ScriptedText texts[] = {{60, 320, 3, 64, 7}, {60, 320, 3, 64, 8}, {60, 320, 3, 64, 9}, {60, 320, 3, 64, 10}};
  const auto drafter = make();
  std::vector<Follower> followers;
  for (int32_t s = 0; s < 4; ++s) {
    ASSERT_TRUE(drafter->attach(s).ok());
    followers.emplace_back(*drafter, stream(), s, texts[s]);
    followers.back().absorb(30 + s, 20);
  }
  const int wants[] = {2, 4, 0, 3};
  Drafts drafts;
  std::vector<ProposeItem> items;
  for (int32_t s = 0; s < 4; ++s) drafts.emplace_back(wants[s]);
  for (int32_t s = 0; s < 4; ++s) items.push_back(followers[s].prepare(35 + 2 * s, drafts[s]));  // 5 to 8 rows each
  drafter->propose(stream(), items);

  for (int32_t s = 0; s < 4; ++s) {
    EXPECT_EQ(items[s].count, wants[s]);
    const auto single = make();
    ASSERT_TRUE(single->attach(0).ok());
    Follower follower(*single, stream(), 0, texts[s]);
    follower.absorb(30 + s, 20);
    EXPECT_EQ(drafts[s], follower.propose(35 + 2 * s, wants[s])) << "sequence " << s;
  }
  // Also after it: everything was taken in.
  for (int32_t s = 0; s < 4; ++s) EXPECT_EQ(followers[s].propose(50, 4), alone(texts[s], 50, 51)[0]);
}

TEST_F(Eagle3Sequence, GoesOnAfterPreemptionAsIfNothingHadHappened) {
  for (const int window : {2048, 32}) {
    const Drafts expected = alone(text_, 70, 120, window);
    const auto drafter = make(window);
    ASSERT_TRUE(drafter->attach(0).ok());
    Follower first(*drafter, stream(), 0, text_);
    first.absorb(69, 20);
    Drafts drafts = propose(first, 70, 90);
    const auto state = drafter->save(0);
    drafter->detach(0);

    const ScriptedText other(100, 320, 3, 64, 11);
    ASSERT_TRUE(drafter->attach(0).ok());
    Follower(*drafter, stream(), 0, other).absorb(99, 48);
    ASSERT_TRUE(drafter->attach(3).ok());
    ASSERT_TRUE(drafter->restore(3, state).ok());
    Follower second(*drafter, stream(), 3, text_);
    second.skip_to(89);
    for (auto& more : propose(second, 90, 120)) drafts.push_back(more);
    EXPECT_EQ(drafts, expected);
  }
}

TEST_F(Eagle3Sequence, RefusesSavedStatesThatDoNotFit) {
  const auto drafter = make();
  ASSERT_TRUE(drafter->attach(0).ok());
  Follower follower(*drafter, stream(), 0, text_);
  follower.absorb(40, 20);
  auto state = drafter->save(0);
  ASSERT_TRUE(drafter->attach(1).ok());
  EXPECT_EQ(drafter->restore(1, std::span(state).first(7)).code(), StatusCode::kDataCorruption);
  EXPECT_EQ(drafter->restore(1, std::span(state).first(state.size() - 1)).code(), StatusCode::kDataCorruption);
  state[0] = std::byte{0x40};  // begins after its end
  EXPECT_EQ(drafter->restore(1, state).code(), StatusCode::kDataCorruption);
}

TEST_F(Eagle3Sequence, DraftsFromASharedPrefixAsFromScratch) {
  for (const int window : {2048, 32}) {
    const auto drafter = make(window);
    ASSERT_TRUE(drafter->attach(0).ok());
    Follower donor(*drafter, stream(), 0, text_);
    std::vector<std::vector<std::byte>> records;
    donor.absorb(80, 48, 16, &records);
    ASSERT_EQ(records.size(), 5u);

    // Another text with the same 64 tokens at its start, so that the row of position 63 has another token.
    ScriptedText heir(110, 320, 3, 64, 12);
    std::copy_n(text_.tokens.begin(), 64, heir.tokens.begin());
    std::copy_n(text_.taps.begin(), 64, heir.taps.begin());
    ASSERT_NE(heir.tokens[64], text_.tokens[64]);
    ASSERT_TRUE(drafter->attach(1).ok());
    Follower follower(*drafter, stream(), 1, heir);
    for (int block = 0; block < 4; ++block) follower.load(block, records[block]);
    follower.absorb(79, 20);
    EXPECT_EQ(propose(follower, 80, 110), alone(heir, 80, 110, window));
  }
}

TEST_F(Eagle3Sequence, WritesTheSameRecordWhateverComesAfterTheBlock) {
  ScriptedText other = text_;
  ++other.tokens[32];
  std::vector<std::vector<std::byte>> one, two;
  const auto drafter = make();
  ASSERT_TRUE(drafter->attach(0).ok() && drafter->attach(1).ok());
  Follower(*drafter, stream(), 0, text_).absorb(40, 40, 16, &one);
  Follower(*drafter, stream(), 1, other).absorb(40, 40, 16, &two);
  EXPECT_EQ(one, two);
  EXPECT_EQ(drafter->home_bytes(), 2 * 16 * 64 * 2 + 64 * 4);
}

TEST_F(Eagle3Sequence, StoresTheBlockThatAVerifiedRowCompletes) {
  const auto drafter = make();
  ASSERT_TRUE(drafter->attach(0).ok() && drafter->attach(1).ok());
  std::vector<std::vector<std::byte>> expected;
  Follower(*drafter, stream(), 0, text_).absorb(48, 20, 16, &expected);
  Follower follower(*drafter, stream(), 1, text_);
  follower.absorb(40, 20);
  for (int position = 41; position <= 48; ++position) follower.propose(position, 4);
  std::vector<std::byte> record(drafter->home_bytes());
  drafter->store_block(1, 2, record.data());
  EXPECT_EQ(record, expected[2]);
}

TEST_F(Eagle3Sequence, TakesInMoreRowsAtOnceThanItsWindowHolds) {
  const auto make_for = [&](int32_t max_rows) {
    return make_eagle3(*device_, folder_.path(), *target_, {.max_rows = max_rows}, 16).value();
  };
  const auto large = make_for(96), small = make_for(16);
  std::vector<std::vector<std::byte>> at_once, piecewise;
  Drafts drafts[2];
  for (auto* drafter : {large.get(), small.get()}) {
    ASSERT_TRUE(drafter->attach(0).ok());
    Follower follower(*drafter, stream(), 0, text_);
    follower.absorb(96, drafter == large.get() ? 96 : 16, 16, drafter == large.get() ? &at_once : &piecewise);
    drafts[drafter == small.get()] = propose(follower, 97, 110);
  }
  EXPECT_EQ(at_once, piecewise);
  EXPECT_EQ(drafts[0], drafts[1]);
}

TEST_F(Eagle3Sequence, MayBeginAtAnyBlockOfALongPrefix) {
  const auto drafter = make();
  ASSERT_TRUE(drafter->attach(0).ok() && drafter->attach(1).ok() && drafter->attach(2).ok());
  std::vector<std::vector<std::byte>> records;
  Follower(*drafter, stream(), 0, text_).absorb(80, 48, 16, &records);
  // Two that begin at block 3, in places where others have written before.
  Follower(*drafter, stream(), 1, ScriptedText(100, 320, 3, 64, 13)).absorb(90, 48);
  drafter->detach(1);
  ASSERT_TRUE(drafter->attach(1).ok());
  Drafts drafts[2];
  for (int32_t s = 1; s <= 2; ++s) {
    Follower follower(*drafter, stream(), s, text_);
    follower.load(3, records[3]);
    follower.load(4, records[4]);
    follower.absorb(99, 20);
    drafts[s - 1] = propose(follower, 100, 120);
  }
  EXPECT_EQ(drafts[0], drafts[1]);
}

TEST_F(Eagle3Sequence, TakesWhatItsPlanSays) {
  const auto plan = plan_drafter("auto:" + folder_.path(), *target_, {.max_sequences = 4, .max_rows = 48}).value();
  const auto drafter = make();
  // 128 + 3 pages a sequence of 16 K and V rows of 64 bf16, and the features of 48 / 16 + 2 blocks
  EXPECT_EQ(plan.fast_bytes, 4 * (131 * 2 * 16 * 64 * 2 + 5 * 64 * 4));
  EXPECT_EQ(plan.fast_bytes, drafter->fast_bytes());
  EXPECT_EQ(plan.home_bytes, drafter->home_bytes());
  EXPECT_EQ(plan.feature_dim, drafter->feature_dim());
  EXPECT_GT(plan.scratch_bytes, 0);
  EXPECT_GT(plan.weight_bytes, 0);
}

}  // namespace
}  // namespace oasis::draft
