// The file tier's cache and its arbiter. Its errors: file_tier_faults_test.cc.
#include <sys/stat.h>

#include <cstdlib>

#include "oasis/kv/file_tier_fixture.h"

namespace oasis::kv {
namespace {

TEST_F(FileTierTest, HoldsMoreThanItsCache) {
  open(60);
  for (HomeId home = 0; home < 60; ++home) write_home(home, home * 7);
  EXPECT_GT(tier_->stats().parts_evicted, 0);
  for (HomeId home = 59; home >= 0; --home) expect_home(home, home * 7);
  EXPECT_LE(tier_->stats().parts_present, 12);
  EXPECT_GE(tier_->stats().bytes_read, (60 * kLayers - 12) * kFrameBytes);
  EXPECT_EQ(tier_->stats().bytes_written, 60 * kLayers * kFrameBytes);
}

TEST_F(FileTierTest, EvictsTheLeastRecentlyUsedPart) {
  open(60);  // 12 frames beside the reserve
  for (HomeId home = 0; home < 6; ++home) write_home(home, home);
  tier_->flush();
  ASSERT_NE(tier_->acquire({0, 0}), nullptr);
  tier_->release({0, 0});
  write_part(*tier_, {6, 0}, 1);
  EXPECT_TRUE(tier_->present({0, 0}));
  EXPECT_FALSE(tier_->present({0, 1}));
  EXPECT_TRUE(tier_->present({1, 0}));
}

TEST_F(FileTierTest, StaysWithinItsMemoryAndFile) {
  open(40, 20);
  const FileTierConfig asked = config(40, 20);
  EXPECT_LE(tier_->memory_bytes(), asked.memory_bytes);
  EXPECT_EQ(tier_->file_bytes(), TierFile::kHeaderBytes + 40 * kLayers * kFrameBytes);
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, tier_->file_bytes());
  EXPECT_GE(info.st_blocks * 512, tier_->file_bytes());  // reserved, not sparse
  EXPECT_EQ(info.st_mode & 0777, 0600u);                 // K/V tell what users wrote
}

TEST_F(FileTierTest, TooLittleMemoryIsAnErrorWithTheNumberThatWorks) {
  FileTierConfig file{.path = path_, .memory_bytes = 1000, .max_homes = 40};
  const Status status = make_file_tier(test_config(), file).status();
  ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
  const std::string& message = status.message();
  file.memory_bytes = std::atoll(message.substr(message.rfind('(') + 1).c_str());
  EXPECT_TRUE(make_file_tier(test_config(), file).ok()) << message;
  --file.memory_bytes;
  EXPECT_FALSE(make_file_tier(test_config(), file).ok());
}

TEST_F(FileTierTest, FileBytesAndHomesBoundEachOther) {
  FileTierConfig file{.path = path_, .file_bytes = 100'000, .memory_bytes = 1 << 20};
  EXPECT_EQ(make_file_tier(test_config(), file).value()->homes(), 11);
  file.max_homes = 7;
  EXPECT_EQ(make_file_tier(test_config(), file).value()->homes(), 7);
  file.file_bytes = 8192;
  EXPECT_EQ(make_file_tier(test_config(), file).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(make_file_tier(test_config(), {.path = path_, .memory_bytes = 1 << 20}).status().code(),
            StatusCode::kInvalidArgument);
}

// case 25
TEST_F(FileTierTest, AFetchFindsRoomThoughEveryCachedPartIsPinned) {
  open(60);
  write_home(0, 1);
  push_out(1);
  std::vector<PartKey> pinned;
  for (HomeId home = 0; home < 60; ++home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      if (tier_->acquire({home, layer})) pinned.push_back({home, layer});
    }
  }
  ASSERT_GE(pinned.size(), 8u);
  expect_home(0, 1);
  for (const PartKey key : pinned) tier_->release(key);
}

// case 25
TEST_F(FileTierTest, AFetchFindsRoomThoughEveryFrameIsDirtyAndNoWriteEnds) {
  open(60, 16, gate_.factory());
  write_home(0, 1);
  push_out(1);
  gate_.hold(false, true);
  for (HomeId home = 1; home < 7; ++home) {
    tier_->drop(home);
    write_home(home, home);
  }
  expect_home(0, 1);
  gate_.hold(false, false);
}

TEST_F(FileTierTest, AWriterWaitsForRoomAndGetsItWhenWritesEnd) {
  open(60, 16, gate_.factory());
  gate_.hold(false, true);
  for (HomeId home = 0; home < 6; ++home) write_home(home, home);
  std::atomic<bool> written = false;
  std::thread writer([&] {
    write_part(*tier_, {6, 0}, 60);
    written = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(written);
  gate_.hold(false, false);
  writer.join();
  for (HomeId home = 0; home < 6; ++home) expect_home(home, home);
}

TEST_F(FileTierTest, AWriterThatPinsCanNeverMakeRoomForIsRefused) {
  open(60);
  for (HomeId home = 0; home < 6; ++home) write_home(home, home);
  for (HomeId home = 0; home < 6; ++home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) ASSERT_NE(tier_->acquire({home, layer}), nullptr);
  }
  const Result<std::byte*> refused = tier_->begin_write({6, 0});
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  for (HomeId home = 0; home < 6; ++home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) tier_->release({home, layer});
  }
  write_part(*tier_, {6, 0}, 1);
}

TEST_F(FileTierTest, AFetchOfMorePartsThanFramesIsRefusedAtOnce) {
  open(60);
  for (HomeId home = 0; home < 9; ++home) write_home(home, home);
  std::vector<PartKey> parts;
  for (HomeId home = 0; home < 9; ++home) {
    for (int32_t layer = 0; layer < kLayers; ++layer) parts.push_back({home, layer});
  }
  const Status status = fetch(parts);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("18 parts"), std::string::npos) << status.message();
  for (const PartKey key : parts) tier_->release(key);
  parts.resize(16);
  EXPECT_TRUE(fetch(parts).ok());
  for (const PartKey key : parts) tier_->release(key);
  for (HomeId home = 0; home < 9; ++home) expect_home(home, home);
}

TEST_F(FileTierTest, TwoBatchesThatDoNotFitTogetherAreServedOneAfterTheOther) {
  open(60);
  for (HomeId home = 0; home < 20; ++home) write_home(home, home);
  tier_->flush();
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 100; ++round) {
        std::vector<PartKey> parts;
        for (HomeId home = 0; home < 7; ++home) parts.push_back({(home + 10 * t + round) % 20, 0});
        for (HomeId home = 0; home < 7; ++home) parts.push_back({(home + 10 * t + round) % 20, 1});
        const Status status = fetch(parts);
        EXPECT_TRUE(status.ok()) << status.message();
        for (const PartKey key : parts) {
          const std::byte* bytes = tier_->acquire(key);
          EXPECT_TRUE(bytes && holds(bytes, key.home + key.layer));
          tier_->release(key);
        }
        for (const PartKey key : parts) tier_->release(key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FileTierTest, AFetchWhoseCallersHoldEverythingIsRefusedInTheEnd) {
  open(60);
  for (HomeId home = 0; home < 20; ++home) write_home(home, home);
  std::vector<PartKey> first;
  for (HomeId home = 0; home < 16; ++home) first.push_back({home, 0});
  ASSERT_TRUE(fetch(first).ok());
  EXPECT_EQ(fetch({{17, 0}}).code(), StatusCode::kResourceExhausted);
  tier_->release({17, 0});
  for (const PartKey key : first) tier_->release(key);
  expect_home(17, 17);
}

TEST_F(FileTierTest, ReadsDoNotQueueBehindWrites) {
  open(60, 40, gate_.factory());  // 8 places in flight
  write_home(0, 1);
  push_out(1);
  gate_.hold(true, true);
  for (HomeId home = 1; home < 17; ++home) {
    tier_->drop(home);
    write_home(home, home);
  }
  ASSERT_TRUE(eventually([&] { return gate_.held() > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(gate_.held(), 4);  // the other half waits for reads
  gate_.hold(false, true);
  expect_home(0, 1);
  gate_.hold(false, false);
}

TEST_F(FileTierTest, APrefetchedPartThatSomebodyComesToWaitForGoesAheadOfOtherPrefetches) {
  open(60, 40, gate_.factory());
  for (HomeId home = 0; home < 12; ++home) write_home(home, home);
  push_out(12);
  gate_.hold(true, false);
  std::vector<PartKey> parts;
  for (HomeId home = 0; home < 12; ++home) parts.push_back({home, 0});
  tier_->prefetch(parts);
  ASSERT_TRUE(eventually([&] { return gate_.held() == 4; }));
  FetchTicket ticket;
  tier_->fetch({&parts[11], 1}, ticket);
  gate_.hold(false, false);
  ASSERT_TRUE(ticket.wait().ok());
  ASSERT_TRUE(eventually([&] { return tier_->present(parts[10]); }));
  EXPECT_EQ(gate_.place_of_read(parts[11]), 4);
  EXPECT_GT(gate_.place_of_read(parts[4]), 4);
  tier_->release(parts[11]);
}

TEST_F(FileTierTest, APartOnItsWayIsReadOnce) {
  open(60, 16, gate_.factory());
  write_home(0, 1);
  push_out(1);
  const int64_t before = gate_.count(false);
  gate_.hold(true, false);
  const PartKey key{0, 0};
  tier_->prefetch({&key, 1});
  FetchTicket a, b;
  tier_->fetch({&key, 1}, a);
  tier_->prefetch({&key, 1});
  tier_->fetch({&key, 1}, b);
  EXPECT_FALSE(a.done());
  gate_.hold(false, false);
  EXPECT_TRUE(a.wait().ok());
  EXPECT_TRUE(b.wait().ok());
  EXPECT_EQ(gate_.count(false), before + 1);
  EXPECT_EQ(fetch({key}).code(), StatusCode::kOk);
  EXPECT_EQ(gate_.count(false), before + 1);
  for (int i = 0; i < 3; ++i) tier_->release(key);
  tier_->drop(0);  // aborts if a pin is left
}

TEST_F(FileTierTest, AWriteOfAHomesFormerOwnerNeverOvertakesTheNewOne) {
  open(60, 16, gate_.factory());
  gate_.hold(false, true);
  write_home(0, 1);
  ASSERT_TRUE(eventually([&] { return gate_.held() == 2; }));
  tier_->drop(0);
  write_home(0, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(gate_.count(true), 2);  // the new writes wait for the old ones
  gate_.hold(false, false);
  tier_->flush();
  push_out(1);
  expect_home(0, 2);
}

TEST_F(FileTierTest, AReadOfAHomesFormerOwnerBringsNothing) {
  open(60, 16, gate_.factory());
  write_home(0, 1);
  push_out(1);
  gate_.hold(true, false);
  const PartKey key{0, 0};
  tier_->prefetch({&key, 1});
  ASSERT_TRUE(eventually([&] { return gate_.held() == 1; }));
  tier_->drop(0);
  write_home(0, 2);
  gate_.hold(false, false);
  tier_->flush();
  push_out(1);
  expect_home(0, 2);
}

TEST_F(FileTierTest, HoldsUnderConcurrencyWhileReadsAndWritesStall) {
  open(24, 16, gate_.factory());
  std::atomic<bool> stop = false;
  std::thread gatekeeper([&] {
    for (int i = 0; !stop; ++i) {
      gate_.hold(i % 3 == 1, i % 3 == 2);
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    gate_.hold(false, false);
  });
  hammer(*tier_, 5, 400);
  stop = true;
  gatekeeper.join();
}

}  // namespace
}  // namespace oasis::kv
