// A tier for tests: wraps a real one, makes it slow, staged and faulty, and watches that its callers keep the contract
// (it aborts on a release without a pin, a drop of a pinned part, a part written twice). Whatever lies behind a pointer
// that was handed back is soon NaN.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "oasis/kv/tier.h"

namespace oasis::kv::testing {

struct TierFaults {
  // Parts are absent, also right after they were written, until a fetch or prefetch has brought them.
  bool staged = false;
  // Staged: a batch arrives so long after it was asked for, plus a random part of the jitter. Batches do not wait for
  // each other: any number is in flight.
  double batch_latency_seconds = 0, batch_jitter_seconds = 0;
  // Staged: so many parts are present at most (the least recently used go), more only while they are pinned. 0: no
  // limit.
  int64_t present_limit = 0;
  // Every call that moves or pins bytes sleeps a random part of this first.
  double call_delay_seconds = 0;
  uint64_t seed = 1;
};

class FaultyTier final : public Tier {
 public:
  FaultyTier(std::unique_ptr<Tier> inner, const TierConfig& config, const TierFaults& faults);
  ~FaultyTier() override;

  // The write (end_write) or read of a part (staged only) that comes after `parts` good ones fails with an I/O error.
  void fail_write_after(int64_t parts);
  void fail_read_after(int64_t parts);
  // Staged: every part that is not pinned becomes absent.
  void evict_unpinned();
  // Pins that callers hold now, releases that they still owe for failed parts included.
  int64_t pins() const;

  std::string describe() const override;
  int32_t homes() const override { return inner_->homes(); }
  bool addressable() const override { return !faults_.staged && inner_->addressable(); }
  int64_t memory_bytes() const override { return inner_->memory_bytes(); }
  int64_t file_bytes() const override { return inner_->file_bytes(); }
  int64_t pinnable_parts() const override;
  Result<std::byte*> begin_write(PartKey key) override;
  void end_write(PartKey key) override;
  std::byte* meta(HomeId home) override { return inner_->meta(home); }
  int64_t meta_bytes() const override { return inner_->meta_bytes(); }
  bool present(PartKey key) const override;
  const std::byte* acquire(PartKey key) override;
  void release(PartKey key) override;
  void fetch(std::span<const PartKey> parts, FetchTicket& ticket) override;
  void prefetch(std::span<const PartKey> parts) override;
  void drop(HomeId home) override;
  Status status(HomeId home) const override;
  void flush() override { inner_->flush(); }
  TierStats stats() const override;

 private:
  using Clock = std::chrono::steady_clock;
  using Frame = std::unique_ptr<std::byte[]>;
  enum class State : uint8_t { kAbsent, kComing, kPresent };
  struct Part {
    State state = State::kAbsent;
    bool writing = false, written = false;
    int32_t pins = 0;
    int32_t owed = 0;                    // releases that fetches of this part, failed, are still owed
    uint32_t generation = 0;             // counts drops: a batch that was asked for before one brings nothing
    Frame frame;                         // staged: filled while kComing or kPresent
    std::list<int64_t>::iterator place;  // in lru_, while present and not pinned
    std::vector<FetchTicket*> waiters;   // while coming
  };
  struct Batch {
    std::vector<std::pair<int64_t, uint32_t>> parts;  // part, generation
    size_t copied = 0;                                // so many of them are in their frames
  };

  int64_t index(PartKey key) const;
  PartKey key(int64_t part) const {
    return {static_cast<HomeId>(part / layers_), static_cast<int32_t>(part % layers_)};
  }
  void delay();
  // The rest is called with mutex_ held.
  double random(double limit);
  Status home_status(HomeId home) const;
  void fail_home(HomeId home, const Status& status);
  void pin(int64_t part);
  void make_absent(int64_t part);
  void trim();
  bool join(int64_t part, FetchTicket* ticket, Batch& batch, Status& status);
  void schedule(Batch batch);
  void copy_next(Batch& batch);
  void arrive(const Batch& batch, std::vector<std::pair<FetchTicket*, Status>>& finished);
  void run();

  const std::unique_ptr<Tier> inner_;
  const TierFaults faults_;
  const int32_t layers_;
  const int64_t part_bytes_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::mt19937_64 random_;
  std::vector<Part> parts_;                          // [home, layer]
  std::unique_ptr<std::atomic<uint8_t>[]> present_;  // [home, layer]
  std::unordered_map<HomeId, Status> failed_;
  std::list<int64_t> lru_;  // oldest first
  std::vector<Frame> spare_;
  std::multimap<Clock::time_point, Batch> in_flight_;  // by arrival
  int64_t writes_left_ = -1, reads_left_ = -1;         // good ones before the one that fails; -1: none fails
  int64_t pins_ = 0, present_count_ = 0, evicted_ = 0, batches_ = 0, parts_read_ = 0;
  std::thread timer_;
};

}  // namespace oasis::kv::testing
