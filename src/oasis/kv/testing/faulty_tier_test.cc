#include "oasis/kv/testing/faulty_tier.h"

#include <gtest/gtest.h>

#include <cmath>

#include "oasis/base/numeric.h"
#include "oasis/kv/tier_test_util.h"

namespace oasis::kv::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::unique_ptr<FaultyTier> make(const TierFaults& faults) {
  auto tier = std::make_unique<FaultyTier>(make_dram_tier(test_config(), 1 << 20).value(), test_config(), faults);
  for (HomeId home = 0; home < 20; ++home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) write_part(*tier, {home, layer}, home);
  }
  return tier;
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

TEST(FaultyTier, StagedPartsAreAbsentUntilTheyAreBrought) {
  const auto tier = make({.staged = true});
  EXPECT_FALSE(tier->addressable());
  const PartKey key{3, 1};
  EXPECT_FALSE(tier->present(key));
  EXPECT_EQ(tier->acquire(key), nullptr);
  FetchTicket ticket;
  tier->fetch({&key, 1}, ticket);
  ASSERT_TRUE(ticket.wait().ok());
  EXPECT_TRUE(tier->present(key));
  EXPECT_EQ(tier->pins(), 1);
  tier->release(key);
  EXPECT_EQ(tier->pins(), 0);
}

TEST(FaultyTier, ABatchArrivesALatencyAfterItWasAskedForAndNotBefore) {
  const auto tier = make({.staged = true, .batch_latency_seconds = .03});
  const PartKey key{0, 0};
  double best = 1;
  for (int i = 0; i < 5; ++i) {  // others use this machine too
    FetchTicket ticket;
    const auto start = Clock::now();
    tier->fetch({&key, 1}, ticket);
    EXPECT_TRUE(ticket.wait().ok());
    EXPECT_GE(seconds_since(start), .03);
    best = std::min(best, seconds_since(start));
    tier->release(key);
    tier->evict_unpinned();
  }
  EXPECT_LT(best, .033);
}

TEST(FaultyTier, ManyBatchesAreInFlightAtOnce) {
  const auto tier = make({.staged = true, .batch_latency_seconds = .05});
  std::vector<FetchTicket> tickets(40);
  const auto start = Clock::now();
  for (HomeId home = 0; home < 20; ++home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const PartKey key{home, layer};
      tier->fetch({&key, 1}, tickets[static_cast<size_t>(home * kLayers + layer)]);
    }
  }
  for (FetchTicket& ticket : tickets) EXPECT_TRUE(ticket.wait().ok());
  EXPECT_LT(seconds_since(start), .5);  // one after the other: 2 s
  EXPECT_EQ(tier->stats().read_batches, 40);
}

TEST(FaultyTier, APartOnItsWayIsJoinedNotReadAgain) {
  const auto tier = make({.staged = true, .batch_latency_seconds = .02});
  const PartKey key{0, 0};
  tier->prefetch({&key, 1});
  tier->prefetch({&key, 1});
  FetchTicket ticket;
  tier->fetch({&key, 1}, ticket);
  EXPECT_TRUE(ticket.wait().ok());
  EXPECT_EQ(tier->stats().read_batches, 1);
  EXPECT_EQ(tier->stats().bytes_read, test_config().shape.part_bytes());
  tier->release(key);
}

TEST(FaultyTier, TheLeastRecentlyUsedPartsGoWhenTheLimitIsPassedButNoPinnedOnes) {
  const auto tier = make({.staged = true, .present_limit = 3});
  std::vector<PartKey> parts;
  for (HomeId home = 0; home < 5; ++home) parts.push_back({home, 0});
  FetchTicket ticket;
  tier->fetch(parts, ticket);
  ASSERT_TRUE(ticket.wait().ok());
  for (const PartKey key : parts) EXPECT_TRUE(tier->present(key));
  for (const PartKey key : parts) tier->release(key);
  EXPECT_FALSE(tier->present(parts[0]));
  EXPECT_FALSE(tier->present(parts[1]));
  EXPECT_TRUE(tier->present(parts[2]));
  ASSERT_NE(tier->acquire(parts[2]), nullptr);  // touched: parts[3] is the oldest now
  tier->release(parts[2]);
  FetchTicket again;
  tier->fetch({&parts[0], 1}, again);
  ASSERT_TRUE(again.wait().ok());
  tier->release(parts[0]);
  EXPECT_TRUE(tier->present(parts[2]));
  EXPECT_FALSE(tier->present(parts[3]));
  EXPECT_EQ(tier->stats().parts_evicted, 3);
}

TEST(FaultyTier, BytesReadAfterTheReleaseOfAnEvictedPartAreNan) {
  const auto tier = make({.staged = true});
  const PartKey key{0, 0};
  FetchTicket ticket;
  tier->fetch({&key, 1}, ticket);
  ASSERT_TRUE(ticket.wait().ok());
  const std::byte* bytes = tier->acquire(key);
  tier->release(key);
  tier->release(key);
  tier->evict_unpinned();
  EXPECT_TRUE(std::isnan(to_float(*reinterpret_cast<const bf16*>(bytes))));
}

TEST(FaultyTier, TheReadThatIsToFailFailsItsHomeAlone) {
  const auto tier = make({.staged = true, .batch_latency_seconds = .001});
  tier->fail_read_after(1);
  const std::vector<PartKey> parts = {{0, 0}, {1, 0}, {2, 0}};
  FetchTicket ticket;
  tier->fetch(parts, ticket);
  EXPECT_EQ(ticket.wait().code(), StatusCode::kIo);
  EXPECT_TRUE(tier->present(parts[0]));
  EXPECT_FALSE(tier->present(parts[1]));
  EXPECT_TRUE(tier->present(parts[2]));
  EXPECT_FALSE(tier->status(1).ok());
  EXPECT_EQ(tier->pins(), 3);
  for (const PartKey key : parts) tier->release(key);
  tier->drop(1);
  EXPECT_TRUE(tier->status(1).ok());
}

TEST(FaultyTier, TheWriteThatIsToFailFailsItsHomeAlone) {
  for (const bool staged : {false, true}) {
    const auto tier = make({.staged = staged});
    tier->drop(0);
    tier->drop(1);
    tier->fail_write_after(1);
    write_part(*tier, {0, 0}, 0);
    write_part(*tier, {1, 0}, 1);
    EXPECT_TRUE(tier->status(0).ok());
    EXPECT_EQ(tier->status(1).code(), StatusCode::kIo);
    EXPECT_FALSE(tier->begin_write({1, 1}).ok());
    EXPECT_EQ(tier->acquire({1, 0}), nullptr);
    FetchTicket ticket;
    const PartKey key{1, 0};
    tier->fetch({&key, 1}, ticket);
    EXPECT_EQ(ticket.wait().code(), StatusCode::kIo);
    tier->release(key);
  }
}

TEST(FaultyTier, JitterDependsOnTheSeedAlone) {
  const auto order = [](uint64_t seed) {
    const auto tier = make({.staged = true, .batch_jitter_seconds = .3, .seed = seed});
    std::mutex mutex;
    std::vector<int> arrived;
    std::vector<std::unique_ptr<FetchTicket>> tickets;
    for (int i = 0; i < 3; ++i) {
      tickets.push_back(std::make_unique<FetchTicket>([&, i] {
        std::lock_guard lock(mutex);
        arrived.push_back(i);
      }));
      const PartKey key{i, 0};
      tier->fetch({&key, 1}, *tickets.back());
    }
    // The delays of these seeds differ by 50 ms and more, so that a late thread does not change the order.
    EXPECT_TRUE(eventually([&] {
      std::lock_guard lock(mutex);
      return arrived.size() == 3;
    }));
    return arrived;
  };
  EXPECT_EQ(order(5), order(5));
  EXPECT_NE(order(5), order(7));
}

TEST(FaultyTierDeathTest, ContractsBrokenByCallersAbort) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto tier = make({.staged = false});
  EXPECT_DEATH(tier->release({0, 0}), "nobody pinned");
  EXPECT_DEATH((void)tier->begin_write({0, 0}), "written twice");
  EXPECT_DEATH(tier->end_write({0, 0}), "without begin_write");
  EXPECT_DEATH(
      {
        tier->acquire({0, 0});
        tier->drop(0);
      },
      "is dropped while");
  EXPECT_DEATH((void)tier->present({0, kLayers}), "layer 2 of");
}

}  // namespace
}  // namespace oasis::kv::testing
