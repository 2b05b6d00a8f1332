#include "oasis/draft/auto.h"

#include <gtest/gtest.h>

#include <cstring>

#include "oasis/draft/make_drafter.h"

namespace oasis::draft {
namespace {

// A head whose every draft is one token, chosen by the test.
class OneToken : public Drafter {
 public:
  int32_t token = 0;
  int wanted = 0;

  std::string name() const override { return "one token"; }
  Status attach(int32_t) override { return {}; }
  void detach(int32_t) override {}
  void propose(Stream&, std::span<ProposeItem> items) override {
    for (ProposeItem& item : items) {
      wanted = item.count = item.want;
      std::fill_n(item.drafts, item.want, token);
    }
  }
  std::vector<std::byte> save(int32_t) override { return std::vector<std::byte>(3); }
  Status restore(int32_t, std::span<const std::byte> state) override {
    return state.size() == 3 ? Status() : data_corruption("{} bytes", state.size());
  }
};

class Auto : public testing::Test {
 protected:
  void SetUp() override {
    auto head = std::make_unique<OneToken>();
    head_ = head.get();
    drafter_ = make_auto(std::move(head), {.max_sequences = 2});
    ASSERT_TRUE(drafter_->attach(0).ok());
  }
  std::vector<int32_t> propose(int want, int32_t sequence = 0) {
    std::vector<int32_t> drafts(want);
    ProposeItem item = {.sequence = sequence,
                        .history = text_,
                        .first_position = int32_t(text_.size()) - 2,
                        .rows = 1,
                        .want = want,
                        .drafts = drafts.data()};
    drafter_->propose(device_->foreground(), {&item, 1});
    drafts.resize(item.count);
    return drafts;
  }
  // A text that repeats itself with period 5, the head guessing wrong, or right where it should.
  void follow(int steps, bool head_right) {
    for (int i = 0; i < steps; ++i) {
      text_.push_back(static_cast<int32_t>(text_.size() % 5));
      head_->token = head_right ? static_cast<int32_t>(text_.size() % 5) : 77;
      propose(3);
    }
  }

  std::unique_ptr<Device> device_ = make_cpu_device(1);
  OneToken* head_ = nullptr;
  std::unique_ptr<Drafter> drafter_;
  std::vector<int32_t> text_ = {0, 1, 2, 3, 4, 0};
};

TEST_F(Auto, UsesTheHeadWhereNothingMatches) {
  text_ = {10, 11, 12};
  head_->token = 5;
  EXPECT_EQ(propose(3), (std::vector<int32_t>{5, 5, 5}));
}

TEST_F(Auto, TurnsToLookupInATextThatRepeatsItself) {
  follow(40, false);
  const int32_t next = static_cast<int32_t>(text_.size() % 5);
  EXPECT_EQ(propose(3), (std::vector<int32_t>{next, (next + 1) % 5, (next + 2) % 5}));
}

TEST_F(Auto, AsksTheHeadForOneGuessWhereLookupDrafts) {
  follow(40, false);
  EXPECT_EQ(head_->wanted, 1);
}

TEST_F(Auto, TurnsBackToTheHeadWhenTheTextStopsRepeating) {
  follow(40, false);
  for (int i = 0; i < 60; ++i) {  // lookup finds a match of one token, and is wrong
    text_.push_back(i % 2 ? 100 : 200 + i);
    head_->token = i % 2 ? 200 + i + 1 : 100;
    propose(3);
  }
  head_->token = 55;
  text_.push_back(100);
  EXPECT_EQ(propose(2), (std::vector<int32_t>{55, 55}));
}

TEST_F(Auto, UsesTheHeadWhereItIsRightMoreOften) {
  // 0 1 2 3 and a new token, again and again: after "1 2 3" lookup is wrong each time, after "0 1" it is right.
  const auto next = [&] {
    const int32_t i = static_cast<int32_t>(text_.size());
    return i % 5 == 4 ? 100 + i : i % 5;
  };
  text_.clear();
  for (int i = 0; i < 202; ++i) {
    text_.push_back(next());
    head_->token = next();
    propose(3);
  }
  EXPECT_EQ(propose(3), (std::vector<int32_t>{2, 2, 2}));  // lookup would go on with 3
}

TEST_F(Auto, KeepsARecordThatOnlyTakesInRowsUntouched) {
  follow(40, false);
  EXPECT_EQ(propose(0).size(), 0u);
  const int32_t next = static_cast<int32_t>(text_.size() % 5);
  EXPECT_EQ(propose(1), (std::vector<int32_t>{next}));
}

TEST_F(Auto, GoesOnAfterPreemptionAsIfNothingHadHappened) {
  follow(40, false);
  const auto state = drafter_->save(0);
  ASSERT_TRUE(drafter_->attach(1).ok() && drafter_->restore(1, state).ok());
  head_->token = 77;
  EXPECT_EQ(propose(3, 1), propose(3, 0));
  EXPECT_NE(propose(1, 1)[0], 77);
}

TEST_F(Auto, RefusesSavedStatesThatDoNotFit) {
  auto state = drafter_->save(0);
  EXPECT_FALSE(drafter_->restore(0, std::span(state).first(5)).ok());
  EXPECT_FALSE(drafter_->restore(0, std::span(state).first(state.size() - 1)).ok());
  std::memset(state.data(), 0x7f, state.size());
  EXPECT_FALSE(drafter_->restore(0, state).ok());
}

TEST(MakeDrafter, RefusesNamesItDoesNotKnow) {
  const auto device = make_cpu_device(1);
  const auto target = model::Checkpoint::open(std::string(OASIS_SOURCE_DIR) + "/tests/data/models/llama-hd96");
  ASSERT_TRUE(target.ok());
  for (const char* spec : {"", "eagle", "eagle3", "eagle3:", "ngram:x", "none:", "auto:", ":x"})
    EXPECT_EQ(make_drafter(*device, spec, *target, {}).status().code(), StatusCode::kInvalidArgument) << spec;
}

TEST(MakeDrafter, MakesWhatNeedsNoFiles) {
  const auto device = make_cpu_device(1);
  const auto target = model::Checkpoint::open(std::string(OASIS_SOURCE_DIR) + "/tests/data/models/llama-hd96");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(make_drafter(*device, "none", *target, {}).value()->name(), "none");
  EXPECT_EQ(make_drafter(*device, "ngram", *target, {}).value()->name(), "ngram");
  EXPECT_EQ(make_drafter(*device, "auto", *target, {}).value()->name(), "ngram");
}

}  // namespace
}  // namespace oasis::draft
