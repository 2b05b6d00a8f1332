// The contract in tier.h, one promise a test, over every tier.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "oasis/kv/file_tier.h"
#include "oasis/kv/testing/faulty_tier.h"
#include "oasis/kv/tier_test_util.h"

namespace oasis::kv {
namespace {

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Tier>()> make;
};

class TierContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    tier_ = GetParam().make();
    ASSERT_GE(tier_->homes(), 8);
  }
  void fetch(const std::vector<PartKey>& parts) {
    FetchTicket ticket;
    tier_->fetch(parts, ticket);
    const Status status = ticket.wait();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  std::unique_ptr<Tier> tier_;
};

TEST_P(TierContract, GivesBackWhatWasWritten) {
  for (HomeId home = 0; home < 8; ++home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) write_part(*tier_, {home, layer}, home * 10 + layer);
  }
  tier_->flush();
  for (HomeId home = 7; home >= 0; --home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const PartKey key{home, layer};
      fetch({key});
      const std::byte* bytes = tier_->acquire(key);
      ASSERT_NE(bytes, nullptr);
      EXPECT_TRUE(holds(bytes, home * 10 + layer));
      tier_->release(key);
      tier_->release(key);
    }
  }
}

TEST_P(TierContract, AnAddressablePartIsPresentAsSoonAsItIsWritten) {
  if (!tier_->addressable()) GTEST_SKIP() << "staged";
  ASSERT_TRUE(tier_->begin_write({3, 1}).ok());
  EXPECT_FALSE(tier_->present({3, 1}));
  EXPECT_EQ(tier_->acquire({3, 1}), nullptr);
  tier_->end_write({3, 1});
  EXPECT_TRUE(tier_->present({3, 1}));
}

TEST_P(TierContract, APartNeverWrittenCannotBeAcquiredAndItsFetchIsAnError) {
  EXPECT_FALSE(tier_->present({0, 0}));
  EXPECT_EQ(tier_->acquire({0, 0}), nullptr);
  write_part(*tier_, {0, 1}, 1);
  const std::vector<PartKey> parts = {{0, 1}, {0, 0}};
  FetchTicket ticket;
  tier_->fetch(parts, ticket);
  const Status status = ticket.wait();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("home 0 layer 0"), std::string::npos) << status.message();
  const std::byte* good = tier_->acquire({0, 1});
  ASSERT_NE(good, nullptr);
  EXPECT_TRUE(holds(good, 1));
  tier_->release({0, 1});
  for (const PartKey key : parts) tier_->release(key);
  EXPECT_TRUE(tier_->status(0).ok());
}

TEST_P(TierContract, ADroppedHomeIsForgottenAndCanBeWrittenAgain) {
  for (int32_t layer = 0; layer < kLayers; ++layer) write_part(*tier_, {5, layer}, layer);
  tier_->drop(5);
  EXPECT_FALSE(tier_->present({5, 0}));
  EXPECT_EQ(tier_->acquire({5, 0}), nullptr);
  for (int32_t layer = 0; layer < kLayers; ++layer) write_part(*tier_, {5, layer}, 50 + layer);
  tier_->flush();
  fetch({{5, 0}});
  const std::byte* bytes = tier_->acquire({5, 0});
  ASSERT_NE(bytes, nullptr);
  EXPECT_TRUE(holds(bytes, 50));
  tier_->release({5, 0});
  tier_->release({5, 0});
}

TEST_P(TierContract, EveryPartOfABatchIsPinnedWhenTheTicketIsDone) {
  std::vector<PartKey> parts;
  for (HomeId home = 0; home < 4; ++home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) parts.push_back({home, layer});
  }
  for (const PartKey key : parts) write_part(*tier_, key, key.home);
  fetch(parts);
  std::vector<const std::byte*> bytes;
  for (const PartKey key : parts) {
    bytes.push_back(tier_->acquire(key));
    ASSERT_NE(bytes.back(), nullptr);
    tier_->release(key);
  }
  // Other traffic does not touch them.
  for (HomeId home = 4; home < 8; ++home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) write_part(*tier_, {home, layer}, 99);
  }
  tier_->flush();
  for (HomeId home = 4; home < 8; ++home) {
    fetch({{home, 0}});
    tier_->release({home, 0});
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(tier_->acquire(parts[i]), bytes[i]);
    EXPECT_TRUE(holds(bytes[i], parts[i].home));
    tier_->release(parts[i]);
    tier_->release(parts[i]);
  }
}

TEST_P(TierContract, APartAskedForTwiceInABatchIsPinnedTwice) {
  write_part(*tier_, {0, 0}, 1);
  fetch({{0, 0}, {0, 0}});
  tier_->release({0, 0});
  const std::byte* bytes = tier_->acquire({0, 0});
  ASSERT_NE(bytes, nullptr);
  EXPECT_TRUE(holds(bytes, 1));
  tier_->release({0, 0});
  tier_->release({0, 0});
}

TEST_P(TierContract, AnEmptyBatchIsDoneAtOnce) {
  FetchTicket ticket;
  tier_->fetch({}, ticket);
  EXPECT_TRUE(ticket.done());
  EXPECT_TRUE(ticket.wait().ok());
}

TEST_P(TierContract, APrefetchedPartBecomesPresentAndStaysUnpinned) {
  write_part(*tier_, {2, 0}, 5);
  tier_->flush();
  const PartKey key{2, 0};
  tier_->prefetch({&key, 1});
  ASSERT_TRUE(eventually([&] { return tier_->present(key); }));
  const std::byte* bytes = tier_->acquire(key);
  ASSERT_NE(bytes, nullptr);
  EXPECT_TRUE(holds(bytes, 5));
  tier_->release(key);
  tier_->drop(2);  // would abort if it were pinned
}

TEST_P(TierContract, AHomeMayBeDroppedWhileItsPrefetchIsUnderWay) {
  for (int round = 0; round < 20; ++round) {
    for (int32_t layer = 0; layer < kLayers; ++layer) write_part(*tier_, {1, layer}, round);
    const std::vector<PartKey> parts = {{1, 0}, {1, 1}};
    tier_->prefetch(parts);
    tier_->drop(1);
    EXPECT_FALSE(tier_->present(parts[0]));
  }
}

TEST_P(TierContract, MetaIsApartForEveryHomeAndOutlivesADrop) {
  ASSERT_GE(tier_->meta_bytes(), test_config().shape.summary_page_bytes() + test_config().extra_bytes);
  for (HomeId home = 0; home < tier_->homes(); ++home) {
    std::memset(tier_->meta(home), home % 251, static_cast<size_t>(tier_->meta_bytes()));
  }
  tier_->drop(0);
  for (HomeId home = 0; home < tier_->homes(); ++home) {
    ASSERT_EQ(tier_->meta(home)[0], static_cast<std::byte>(home % 251));
    ASSERT_EQ(tier_->meta(home)[tier_->meta_bytes() - 1], static_cast<std::byte>(home % 251));
  }
}

TEST_P(TierContract, CallsBackOnceWhenABatchIsDone) {
  write_part(*tier_, {0, 0}, 1);
  tier_->flush();
  std::atomic<int> calls = 0;
  FetchTicket ticket([&] {
    // No lock of the tier is held: calling back into it is fine.
    if (tier_->present({0, 0})) ++calls;
  });
  const PartKey key{0, 0};
  tier_->fetch({&key, 1}, ticket);
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  tier_->release(key);
}

TEST_P(TierContract, HoldsUnderConcurrentWritersReadersAndDrops) { hammer(*tier_, 11, 1500); }

std::unique_ptr<Tier> dram() { return make_dram_tier(test_config(), 1 << 20).value(); }

std::unique_ptr<Tier> file(const IoBackendFactory& make_backend) {
  return make_file_tier_on(test_config(), {.path = temp_path(), .memory_bytes = 128 << 10, .max_homes = 40},
                           make_backend)
      .value();
}

using testing::FaultyTier;
using testing::TierFaults;
std::vector<Kind> kinds() {
  return {
      {"Dram", dram},
      {"Direct", [] { return std::make_unique<FaultyTier>(dram(), test_config(), TierFaults{}); }},
      {"File", [] { return file(make_io_backend); }},
      {"FileOnThreads", [] { return file([](int fd) { return make_thread_backend(fd, 4); }); }},
      {"Staged",
       [] {
         const TierFaults faults{.staged = true, .batch_latency_seconds = .0005, .present_limit = 10};
         return std::make_unique<FaultyTier>(dram(), test_config(), faults);
       }},
      {"StagedJittery",
       [] {
         const TierFaults faults{.staged = true, .batch_jitter_seconds = .001, .call_delay_seconds = .00002};
         return std::make_unique<FaultyTier>(dram(), test_config(), faults);
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierContract, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace oasis::kv
