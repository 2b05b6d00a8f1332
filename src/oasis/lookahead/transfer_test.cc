#include "oasis/lookahead/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "oasis/kv/testing/faulty_tier.h"

namespace oasis::lookahead {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// A staged tier whose homes 0 .. 9 hold, in every block-head, a byte of their own, and a transfer over it.
class Background : public testing::Test {
 protected:
  static constexpr int32_t kHomes = 10;

  void start(const kv::testing::TierFaults& faults, bool serial = false) {
    config_.shape = {.layers = 2, .kv_heads = 2, .head_dim = 8, .block_size = 16};
    config_.serial = serial;
    const kv::TierConfig tier{.shape = config_.shape};
    auto dram = kv::make_dram_tier(tier, kHomes * kv::dram_home_bytes(tier));
    ASSERT_TRUE(dram.ok()) << dram.status().message();
    tier_ = std::make_unique<kv::testing::FaultyTier>(std::move(*dram), tier, faults);
    for (int32_t home = 0; home < kHomes; ++home) {
      for (int32_t layer = 0; layer < 2; ++layer) {
        std::byte* part = *tier_->begin_write({home, layer});
        for (int32_t head = 0; head < 2; ++head) {
          std::memset(part + head * bytes(), value(home, layer, head), static_cast<size_t>(bytes()));
        }
        tier_->end_write({home, layer});
      }
    }
    slots_.resize(static_cast<size_t>(kHomes * 4 * bytes()));
    transfer_ = std::make_unique<Transfer>(*device_, *tier_, config_);
  }

  int64_t bytes() const { return config_.shape.block_head_bytes(); }
  static int value(int32_t home, int32_t layer, int32_t head) { return 1 + home * 4 + layer * 2 + head; }
  std::byte* slot(int32_t i) { return slots_.data() + i * bytes(); }
  TransferItem item(int32_t home, int32_t layer, int32_t head, int32_t to, int32_t sequence = 0) {
    return {.part = {home, layer}, .offset = head * bytes(), .to = slot(to), .sequence = sequence};
  }
  void expect_slot(int32_t i, int expected) {
    EXPECT_EQ(std::count(slot(i), slot(i + 1), static_cast<std::byte>(expected)), bytes()) << "slot " << i;
  }

  CoreConfig config_;
  std::unique_ptr<Device> device_ = make_cpu_device(1);
  std::unique_ptr<kv::testing::FaultyTier> tier_;
  std::vector<std::byte> slots_;
  std::unique_ptr<Transfer> transfer_;
};

TEST_F(Background, APlanIsInTheSlotsWhenWaitReturns) {
  start({.staged = true, .batch_latency_seconds = .005});
  transfer_->publish(0, 0, {item(3, 0, 1, 0), item(3, 0, 0, 1), item(7, 0, 1, 2)});
  EXPECT_GT(transfer_->wait(0, 0), 0);
  expect_slot(0, value(3, 0, 1));
  expect_slot(1, value(3, 0, 0));
  expect_slot(2, value(7, 0, 1));
  EXPECT_EQ(transfer_->moved(), 3);
  EXPECT_EQ(tier_->pins(), 0);
}

TEST_F(Background, AnEmptyPlanIsDoneAtOnce) {
  start({.staged = true});
  transfer_->publish(1, 0, {});
  EXPECT_EQ(transfer_->wait(1, 0), 0);
}

TEST_F(Background, AReadThatIsOnItsWayDelaysItsOwnLayerOnly) {
  start({.staged = true, .batch_latency_seconds = .2});
  tier_->prefetch(std::vector<kv::PartKey>{{4, 1}});
  while (!tier_->present({4, 1})) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto begin = Clock::now();
  transfer_->publish(0, 0, {item(2, 0, 0, 0)});
  transfer_->publish(1, 0, {item(4, 1, 0, 1)});
  transfer_->wait(1, 0);
  EXPECT_LT(seconds_since(begin), .15);
  expect_slot(1, value(4, 1, 0));
  transfer_->wait(0, 0);
  EXPECT_GE(seconds_since(begin), .2);
  expect_slot(0, value(2, 0, 0));
}

TEST_F(Background, AFailedReadIsToldToTheSequencesThatWantedItAndToNoOther) {
  start({.staged = true});
  tier_->fail_read_after(1);
  transfer_->publish(0, 0, {item(1, 0, 0, 0, 5), item(2, 0, 0, 1, 6), item(1, 0, 1, 2, 7)});
  transfer_->wait(0, 0);
  const auto errors = transfer_->take_errors();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].sequence, 6);
  EXPECT_EQ(errors[0].status.code(), StatusCode::kIo);
  EXPECT_EQ(errors[0].step, 0);
  EXPECT_TRUE(transfer_->take_errors().empty());
  expect_slot(0, value(1, 0, 0));
  expect_slot(2, value(1, 0, 1));
  EXPECT_EQ(tier_->pins(), 0);
}

TEST_F(Background, DrainLeavesNothingUnderWay) {
  start({.staged = true, .batch_latency_seconds = .02});
  for (int32_t layer = 0; layer < 2; ++layer) transfer_->publish(layer, 0, {item(5 + layer, layer, 0, layer)});
  transfer_->drain();
  EXPECT_EQ(transfer_->wait(0, 0) + transfer_->wait(1, 0), 0);
  EXPECT_EQ(transfer_->moved(), 2);
}

TEST_F(Background, SerialModeReturnsWhenThePlanIsInTheSlots) {
  start({.staged = true, .batch_latency_seconds = .01}, true);
  transfer_->publish(0, 0, {item(8, 0, 0, 0)});
  expect_slot(0, value(8, 0, 0));
  EXPECT_EQ(transfer_->wait(0, 0), 0);
}

TEST_F(Background, RunNowBringsItemsInOnTheCallersThread) {
  start({.staged = true, .batch_latency_seconds = .01});
  std::vector<TransferItem> items;
  for (int32_t home = 0; home < kHomes; ++home) items.push_back(item(home, 1, 1, home));
  transfer_->run_now(std::move(items));
  for (int32_t home = 0; home < kHomes; ++home) expect_slot(home, value(home, 1, 1));
  EXPECT_EQ(tier_->pins(), 0);
}

TEST_F(Background, PoisonGoesInBeforeTheBytesAndStaysWhereTheReadFailed) {
  config_.hooks.poison = true;
  start({.staged = true});
  tier_->fail_read_after(0);
  transfer_->publish(0, 0, {item(1, 0, 0, 0)});
  transfer_->wait(0, 0);
  expect_slot(0, 0xff);
}

}  // namespace
}  // namespace oasis::lookahead
