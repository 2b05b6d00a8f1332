// For the tests of the file tier: a gate before its I/O, and a fixture with a small tier.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "oasis/kv/file_tier.h"
#include "oasis/kv/tier_test_util.h"

namespace oasis::kv {

constexpr int64_t kFrameBytes = 4096;

inline int64_t offset_of(PartKey key) {
  return TierFile::kHeaderBytes + (key.home * kLayers + key.layer) * kFrameBytes;
}

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

}  // namespace oasis::kv
