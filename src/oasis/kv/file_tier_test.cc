#include "oasis/kv/file_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "oasis/kv/tier_test_util.h"

extern char** environ;

namespace oasis::kv {
namespace {

constexpr int64_t kFrameBytes = 4096;

int64_t offset_of(PartKey key) { return TierFile::kHeaderBytes + (key.home * kLayers + key.layer) * kFrameBytes; }

// Stands between the tier and threads that do the I/O: holds requests back, fails them, remembers them.
class Gate {
 public:
  void hold(bool reads, bool writes) {
    std::lock_guard lock(mutex_);
    hold_reads_ = reads;
    hold_writes_ = writes;
    if (inner_) inner_->wake();
  }
  // Requests that touch the part fail from now on.
  void fail(PartKey key, int error) {
    std::lock_guard lock(mutex_);
    errors_[offset_of(key)] = error;
  }
  // How many reads were started before that of the part.
  int64_t place_of_read(PartKey key) {
    std::lock_guard lock(mutex_);
    int64_t place = 0;
    for (const IoRequest& r : seen_) {
      if (!r.write && r.offset == offset_of(key)) return place;
      place += !r.write;
    }
    return -1;
  }
  int64_t count(bool writes) {
    std::lock_guard lock(mutex_);
    return std::ranges::count_if(seen_, [&](const IoRequest& r) { return r.write == writes; });
  }
  int64_t held() {
    std::lock_guard lock(mutex_);
    return static_cast<int64_t>(held_.size());
  }
  IoBackendFactory factory() {
    return [this](int fd) { return std::make_unique<Backend>(*this, make_thread_backend(fd, 8)); };
  }

 private:
  class Backend final : public IoBackend {
   public:
    Backend(Gate& gate, std::unique_ptr<IoBackend> inner) : gate_(gate), inner_(std::move(inner)) {
      std::lock_guard lock(gate_.mutex_);
      gate_.inner_ = inner_.get();
    }
    ~Backend() override {
      std::lock_guard lock(gate_.mutex_);
      gate_.inner_ = nullptr;
    }
    std::string name() const override { return "gate"; }
    int depth() const override { return inner_->depth(); }
    void wake() override { inner_->wake(); }
    void submit(std::span<const IoRequest> requests) override {
      std::lock_guard lock(gate_.mutex_);
      for (const IoRequest& r : requests) gate_.seen_.push_back(r);
      gate_.held_.insert(gate_.held_.end(), requests.begin(), requests.end());
      pass();
    }
    void wait(std::chrono::milliseconds timeout, std::vector<IoResult>& done) override {
      if (failed_.empty()) inner_->wait(timeout, done);
      std::lock_guard lock(gate_.mutex_);
      pass();
      done.insert(done.end(), failed_.begin(), failed_.end());
      failed_.clear();
    }

   private:
    void pass() {
      std::erase_if(gate_.held_, [this](const IoRequest& r) {
        if (r.write ? gate_.hold_writes_ : gate_.hold_reads_) return false;
        if (const auto error = gate_.errors_.find(r.offset); error != gate_.errors_.end()) {
          failed_.push_back({r.tag, error->second});
        } else {
          inner_->submit({&r, 1});
        }
        return true;
      });
    }
    Gate& gate_;
    const std::unique_ptr<IoBackend> inner_;
    std::vector<IoResult> failed_;
  };

  std::mutex mutex_;
  IoBackend* inner_ = nullptr;
  bool hold_reads_ = false, hold_writes_ = false;
  std::map<int64_t, int> errors_;  // by offset
  std::vector<IoRequest> seen_, held_;
};

class FileTierTest : public ::testing::Test {
 protected:
  FileTierTest() : path_(temp_path()) {}
  // With the least memory that gives so many frames.
  void open(int32_t homes, int64_t frames = 16, const IoBackendFactory& factory = make_io_backend) {
    Result<std::unique_ptr<Tier>> tier = make_file_tier_on(test_config(), config(homes, frames), factory);
    ASSERT_TRUE(tier.ok()) << tier.status().message();
    tier_ = std::move(*tier);
    ASSERT_EQ(tier_->pinnable_parts(), frames);
  }
  FileTierConfig config(int32_t homes, int64_t frames) const {
    FileTierConfig config{.path = path_, .memory_bytes = 0, .max_homes = homes};
    while (true) {
      const Result<FileTier::Plan> plan = FileTier::plan(test_config(), config);
      if (plan.ok() && plan->frames >= frames) return config;
      config.memory_bytes += 256;
    }
  }
  void write_home(HomeId home, int64_t seed) {
    for (int32_t layer = 0; layer < kLayers; ++layer) write_part(*tier_, {home, layer}, seed + layer);
  }
  Status fetch(const std::vector<PartKey>& parts) {
    FetchTicket ticket;
    tier_->fetch(parts, ticket);
    return ticket.wait();
  }
  // Fetches, compares, releases.
  void expect_home(HomeId home, int64_t seed) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const PartKey key{home, layer};
      const Status status = fetch({key});
      ASSERT_TRUE(status.ok()) << status.message();
      const std::byte* bytes = tier_->acquire(key);
      ASSERT_NE(bytes, nullptr);
      EXPECT_TRUE(holds(bytes, seed + layer)) << "home " << home << " layer " << layer;
      tier_->release(key);
      tier_->release(key);
    }
  }
  // Writes and reads other homes until nothing of [0, first) is in DRAM.
  void push_out(HomeId first) {
    for (HomeId home = first; home < tier_->homes(); ++home) {
      tier_->drop(home);
      write_home(home, home);
    }
    tier_->flush();
    ASSERT_TRUE(eventually([&] {
      for (HomeId home = 0; home < first; ++home) {
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          if (tier_->present({home, layer})) return false;
        }
      }
      return true;
    }));
  }
  void change_byte(PartKey key, int64_t offset) {
    const int fd = ::open(path_.c_str(), O_RDWR);
    const int64_t at = offset_of(key) + offset;
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
    close(fd);
  }

  std::string path_;
  Gate gate_;  // outlives the tier
  std::unique_ptr<Tier> tier_;
};

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
  file.memory_bytes = std::atoll(message.substr(message.rfind("needs ") + 6).c_str());
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

// case 32
TEST_F(FileTierTest, AFlippedByteFailsItsHomeAlone) {
  open(60);
  for (HomeId home = 0; home < 3; ++home) write_home(home, home * 5);
  push_out(3);
  change_byte({1, 1}, 100);
  ASSERT_TRUE(fetch({{1, 0}}).ok());
  tier_->release({1, 0});
  EXPECT_TRUE(tier_->present({1, 0}));
  const Status status = fetch({{1, 1}});
  EXPECT_EQ(status.code(), StatusCode::kDataCorruption);
  EXPECT_NE(status.message().find("home 1 layer 1"), std::string::npos) << status.message();
  EXPECT_EQ(tier_->acquire({1, 1}), nullptr);
  tier_->release({1, 1});
  EXPECT_EQ(tier_->status(1).code(), StatusCode::kDataCorruption);
  EXPECT_FALSE(tier_->present({1, 0}));
  EXPECT_EQ(fetch({{1, 0}}).code(), StatusCode::kDataCorruption);
  tier_->release({1, 0});
  EXPECT_FALSE(tier_->begin_write({1, 0}).ok());
  EXPECT_EQ(tier_->stats().checksum_failures, 1);
  expect_home(0, 0);
  expect_home(2, 10);
  tier_->drop(1);
  EXPECT_TRUE(tier_->status(1).ok());
  write_home(1, 77);
  expect_home(1, 77);
}

// case 32
TEST_F(FileTierTest, ATruncatedFileFailsTheHomesBeyondItsEnd) {
  open(60);
  for (HomeId home = 0; home < 3; ++home) write_home(home, home * 5);
  push_out(3);
  // In the middle of home 1, and of a sector.
  ASSERT_EQ(truncate(path_.c_str(), TierFile::kHeaderBytes + 3 * kFrameBytes + 700), 0);
  EXPECT_EQ(fetch({{1, 1}}).code(), StatusCode::kDataCorruption);
  tier_->release({1, 1});
  EXPECT_EQ(fetch({{2, 0}}).code(), StatusCode::kDataCorruption);
  tier_->release({2, 0});
  expect_home(0, 0);
}

TEST_F(FileTierTest, AReaderKeepsItsBytesWhenTheHomeFails) {
  open(60);
  write_home(0, 9);
  push_out(1);
  change_byte({0, 1}, 0);
  ASSERT_TRUE(fetch({{0, 0}}).ok());
  const std::byte* bytes = tier_->acquire({0, 0});
  EXPECT_EQ(fetch({{0, 1}}).code(), StatusCode::kDataCorruption);
  EXPECT_TRUE(holds(bytes, 9));
  EXPECT_EQ(tier_->acquire({0, 0}), nullptr);
  tier_->release({0, 0});
  tier_->release({0, 0});
  tier_->release({0, 1});
  tier_->drop(0);
  write_home(0, 3);
  expect_home(0, 3);
}

TEST_F(FileTierTest, AFailedWriteFailsItsHomeAlone) {
  for (const int error : {EIO, ENOSPC}) {
    Gate gate;
    open(60, 16, gate.factory());
    gate.fail({1, 1}, error);
    for (HomeId home = 0; home < 3; ++home) write_home(home, home);
    tier_->flush();
    EXPECT_TRUE(eventually([&] { return !tier_->status(1).ok(); }));
    EXPECT_EQ(tier_->status(1).code(), StatusCode::kIo);
    EXPECT_NE(tier_->status(1).message().find(std::strerror(error)), std::string::npos) << tier_->status(1).message();
    EXPECT_EQ(tier_->acquire({1, 0}), nullptr);
    expect_home(0, 0);
    expect_home(2, 2);
    tier_.reset();
  }
}

TEST_F(FileTierTest, AFailedReadFailsItsHomeAloneAndEveryoneWhoWaitsForIt) {
  open(60, 16, gate_.factory());
  for (HomeId home = 0; home < 3; ++home) write_home(home, home);
  push_out(3);
  gate_.fail({1, 0}, EIO);
  gate_.hold(true, false);
  const std::vector<PartKey> parts = {{0, 0}, {1, 0}, {1, 1}, {2, 0}};
  FetchTicket a, b;
  tier_->fetch(parts, a);
  tier_->fetch(parts, b);
  gate_.hold(false, false);
  EXPECT_EQ(a.wait().code(), StatusCode::kIo);
  EXPECT_EQ(b.wait().code(), StatusCode::kIo);
  EXPECT_NE(tier_->acquire({2, 0}), nullptr);
  tier_->release({2, 0});
  for (const PartKey key : parts) tier_->release(key);
  for (const PartKey key : parts) tier_->release(key);
  tier_->drop(1);
  expect_home(0, 0);
  expect_home(2, 2);
}

TEST_F(FileTierTest, ATierClosedWithWorkUnderWayTellsWhoWaits) {
  open(60, 16, gate_.factory());
  write_home(0, 1);
  push_out(1);
  for (HomeId home = 1; home < 5; ++home) tier_->drop(home), write_home(home, 1);
  std::vector<PartKey> parts;
  for (HomeId home = 0; home < 16; ++home) parts.push_back({home, 0});
  FetchTicket a, b;
  gate_.hold(true, false);
  tier_->fetch(parts, a);
  tier_->fetch(std::vector<PartKey>{{40, 0}}, b);
  gate_.hold(false, false);
  tier_.reset();
  EXPECT_TRUE(a.done());
  EXPECT_TRUE(b.done());
}

TEST_F(FileTierTest, HoldsUnderConcurrencyWithFailuresInBetween) {
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

TEST_F(FileTierTest, TheFileIsGoneAfterwards) {
  open(20);
  EXPECT_TRUE(std::filesystem::exists(path_));
  tier_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileTierTest, AFileOfSomethingElseIsLeftAlone) {
  std::ofstream(path_) << "a letter, not a cache";
  const Status status = make_file_tier(test_config(), config(20, 16)).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("something else"), std::string::npos) << status.message();
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, "a letter, not a cache");
  std::filesystem::remove(path_);
}

TEST_F(FileTierTest, AFileInUseIsRefused) {
  open(20);
  const Status status = make_file_tier(test_config(), config(20, 16)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("in use"), std::string::npos) << status.message();
  write_home(0, 3);
  expect_home(0, 3);
}

// case 63
TEST_F(FileTierTest, AFolderThatCannotBeWrittenToIsAnErrorThatSaysSo) {
  for (const char* path : {"/nonexistent-folder/tier", "/proc/tier", "/"}) {
    path_ = path;
    const Status status = make_file_tier(test_config(), config(20, 16)).status();
    EXPECT_EQ(status.code(), StatusCode::kIo) << path;
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  }
  path_ = "/dev/null";
  EXPECT_EQ(make_file_tier(test_config(), config(20, 16)).status().code(), StatusCode::kInvalidArgument);
}

// A small file system of its own, where that is allowed.
class SmallDisk {
 public:
  explicit SmallDisk(const char* options) : path_(temp_path()) {
    std::filesystem::create_directory(path_);
    mounted_ = mount("none", path_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount(path_.c_str());
    std::filesystem::remove(path_);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool mounted_;
};

TEST_F(FileTierTest, AFullDiskIsAnErrorThatNamesBytesAskedAndFree) {
  const SmallDisk disk("size=8m");
  if (!disk.mounted()) GTEST_SKIP() << "may not mount";
  path_ = disk.path() + "/tier";
  const Status status = make_file_tier(test_config(), config(2000, 16)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(fmt::format("{} bytes asked for", 4096 + 2000 * kLayers * kFrameBytes)),
            std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("8384512 are free"), std::string::npos) << status.message();  // 8 MiB less the header
  EXPECT_FALSE(std::filesystem::exists(path_));
  open(900);  // without O_DIRECT or with, it works where it fits
  for (HomeId home = 0; home < 900; ++home) write_home(home, home);
  for (HomeId home = 0; home < 900; home += 50) expect_home(home, home);
  tier_.reset();
}

// case 63
TEST_F(FileTierTest, AReadOnlyDiskIsAnErrorThatSaysSo) {
  const SmallDisk disk("size=8m,ro");
  if (!disk.mounted()) GTEST_SKIP() << "may not mount";
  path_ = disk.path() + "/tier";
  const Status status = make_file_tier(test_config(), config(20, 16)).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find("Read-only"), std::string::npos) << status.message();
}

// Run by the next test in a process of its own.
TEST_F(FileTierTest, DISABLED_WritesUntilKilled) {
  alarm(60);  // should whoever is to kill it be gone
  path_ = std::getenv("OASIS_KV_VICTIM");
  open(200);
  for (int64_t seed = 0;; ++seed) {
    const auto home = static_cast<HomeId>(seed % 200);
    tier_->drop(home);
    write_home(home, seed);
    if (seed == 20) std::puts("writing"), std::fflush(stdout);
  }
}

// case 34
TEST_F(FileTierTest, AKilledWriterLeavesNothingBehindThatIsBelieved) {
  for (int round = 0; round < 20; ++round) {
    int output[2];
    ASSERT_EQ(pipe(output), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output[1], 1);
    posix_spawn_file_actions_addclose(&actions, output[0]);
    setenv("OASIS_KV_VICTIM", path_.c_str(), 1);
    const char* arguments[] = {"kv_test", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                               "--gtest_filter=FileTierTest.DISABLED_WritesUntilKilled", nullptr};
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, "/proc/self/exe", &actions, nullptr, const_cast<char**>(arguments), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(output[1]);
    std::string text;
    char byte = 0;
    while (text.find("writing") == std::string::npos && ::read(output[0], &byte, 1) == 1) text += byte;
    EXPECT_NE(text.find("writing"), std::string::npos) << text;
    std::this_thread::sleep_for(std::chrono::microseconds(137 * round));
    kill(child, SIGKILL);
    int how = 0;
    waitpid(child, &how, 0);
    EXPECT_TRUE(WIFSIGNALED(how));
    close(output[0]);

    EXPECT_TRUE(std::filesystem::exists(path_));
    open(200);
    for (HomeId home = 0; home < 200; ++home) ASSERT_EQ(tier_->acquire({home, 0}), nullptr);
    EXPECT_EQ(fetch({{0, 0}}).code(), StatusCode::kNotFound);
    tier_->release({0, 0});
    write_home(0, round);
    push_out(1);
    expect_home(0, round);
    tier_.reset();
  }
}

}  // namespace
}  // namespace oasis::kv
