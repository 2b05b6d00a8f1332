// The file tier's inside: file_tier.cc has what callers call, file_tier_io.cc the I/O thread.
//
// A part lives in the file, in a frame of the DRAM cache, or in both:
//
//   kUnwritten -begin_write-> kWriting -end_write-> kDirty -written-> kClean <-evicted / read-> kOnFile
//                                                                            (kReading on the way)
//
// Frames are free, evictable (clean and not pinned: in the LRU list), or busy. Two rules keep loads from deadlocking:
// - `reserve_` frames are kept free for fetches: writers and prefetches take one only beyond those, so a pool full of
//   dirty or pinned frames still lets a batch in.
// - Fetches get their frames in the order they came, each batch whole before the next, so that two batches never hold
//   half of what they need.
//
// One I/O thread owns the link: reads that somebody waits for first, then prefetches, then writes, which have places of
// their own in flight (few while there are reads), so that neither starves.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "oasis/kv/frame_lru.h"
#include "oasis/kv/host_memory.h"
#include "oasis/kv/io_backend.h"
#include "oasis/kv/tier.h"
#include "oasis/kv/tier_file.h"

namespace oasis::kv {

using IoBackendFactory = std::function<std::unique_ptr<IoBackend>(int fd)>;
// make_file_tier with another backend: the seam through which tests inject faults.
Result<std::unique_ptr<Tier>> make_file_tier_on(const TierConfig& config, const FileTierConfig& file,
                                                const IoBackendFactory& make_backend);

class FileTier final : public Tier {
 public:
  struct Plan {
    int32_t homes = 0, frames = 0;
    int64_t frame_bytes = 0, meta_bytes = 0, meta_stride = 0, file_bytes = 0, memory_bytes = 0;
  };
  static Result<Plan> plan(const TierConfig& config, const FileTierConfig& file);

  FileTier(const KvShape& shape, const Plan& plan, TierFile file, HostArena arena, std::unique_ptr<IoBackend> backend);
  ~FileTier() override;

  std::string describe() const override;
  int32_t homes() const override { return plan_.homes; }
  bool addressable() const override { return false; }
  int64_t memory_bytes() const override { return plan_.memory_bytes; }
  int64_t file_bytes() const override { return file_.bytes(); }
  int64_t pinnable_parts() const override { return plan_.frames; }
  Result<std::byte*> begin_write(PartKey key) override;
  void end_write(PartKey key) override;
  std::byte* meta(HomeId home) override;
  int64_t meta_bytes() const override { return plan_.meta_bytes; }
  bool present(PartKey key) const override;
  const std::byte* acquire(PartKey key) override;
  void release(PartKey key) override;
  void fetch(std::span<const PartKey> parts, FetchTicket& ticket) override;
  void prefetch(std::span<const PartKey> parts) override;
  void drop(HomeId home) override;
  Status status(HomeId home) const override;
  void flush() override;
  TierStats stats() const override;
  std::optional<Lasting> lasting() const override { return Lasting{file_.path(), shape_.layers}; }
  bool checksums(HomeId home, std::span<uint64_t> out) const override;
  void adopt(HomeId home, std::span<const uint64_t> checksums) override;
  void keep_file() override { file_.keep(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int32_t kNoFrame = -1;
  static constexpr int64_t kNoPart = -1;

  enum class PartState : uint8_t { kUnwritten, kWriting, kDirty, kClean, kReading, kOnFile };
  struct Part {
    uint64_t checksum = 0;  // of what the file holds
    int32_t frame = kNoFrame;
    PartState state = PartState::kUnwritten;
    bool in_flight = false;  // an I/O of its place in the file: perhaps one of a former owner of the home
  };
  struct Frame {
    int64_t part = kNoPart;    // whose bytes it holds or will hold
    int64_t moving = kNoPart;  // whose place in the file an I/O in flight reads or writes
    // Of the latest read or write wanted of this frame: queue entries with another number are stale. 0: none.
    int64_t ticket = 0;
    uint64_t checksum = 0;  // of what is being written; the I/O thread's
    int32_t pins = 0;
    bool writes = false;  // what is in flight
    bool hint = false;    // a prefetch, not awaited yet
    std::vector<FetchTicket*> waiters;
  };
  struct Queued {
    int32_t frame;
    int64_t ticket;
  };
  struct Wanted {
    int64_t part;
    FetchTicket* ticket;
  };
  struct Finished {
    FetchTicket* ticket;
    Status status;
  };
  using FinishedList = std::vector<Finished>;  // told after the lock is given up

  int64_t index(PartKey key) const;
  PartKey key(int64_t part) const;
  std::byte* data(int32_t frame) const { return arena_.data() + int64_t{frame} * plan_.frame_bytes; }
  Part& part(int64_t i) { return parts_[static_cast<size_t>(i)]; }
  Frame& frame(int32_t f) { return frames_[static_cast<size_t>(f)]; }
  static void tell(const FinishedList& finished);

  // All of these are called with mutex_ held.
  bool failed(HomeId home) const { return home_failed_[static_cast<size_t>(home)].load(std::memory_order_relaxed); }
  void set_present(int64_t i, bool present);
  int32_t take_frame(bool for_fetch);
  void evict_oldest();
  void settle(int32_t f);      // its part is clean and perhaps not pinned: evictable then
  void free_frame(int32_t f);  // forgets its part; free now, or when its I/O is over
  void pin(int64_t i);
  void start_read(int64_t i, int32_t f, bool hint);
  void grant(FinishedList& finished);
  void refuse(const Wanted& wanted, const Status& status, FinishedList& finished);
  void fail_home(HomeId home, const Status& status, FinishedList& finished);
  bool must_wake();  // the I/O thread sleeps: the caller wakes it after the lock is given up

  // The I/O thread.
  void run();
  std::vector<IoRequest> collect();
  void collect_from(std::deque<Queued>& queue, bool write, int& in_flight, int limit, std::vector<IoRequest>& requests);
  void give_up_waiting(FinishedList& finished);
  void finish_io(int32_t f, int error, uint64_t checksum, FinishedList& finished);
  Status read_error(int64_t i, int error, uint64_t checksum);

  const KvShape shape_;
  const Plan plan_;
  const int32_t reserve_;
  TierFile file_;
  HostArena arena_;  // frames [frame], then meta [home]
  const std::unique_ptr<IoBackend> backend_;

  mutable std::mutex mutex_;
  std::condition_variable room_, written_;
  bool stop_ = false, sleeping_ = false;
  std::vector<Part> parts_;                              // [home, layer]
  std::unique_ptr<std::atomic<uint8_t>[]> present_;      // [home, layer]
  std::unique_ptr<std::atomic<uint8_t>[]> home_failed_;  // [home]
  std::unordered_map<HomeId, Status> failed_;
  std::unordered_map<int64_t, int32_t> owed_;  // part -> releases that failed fetches of it are still owed
  std::vector<Frame> frames_;
  std::vector<int32_t> free_;
  FrameLru evictable_;
  int64_t next_ticket_ = 1;
  std::set<int64_t> dirty_;     // tickets of writes that are not in the file yet
  std::deque<Wanted> pending_;  // fetches that have no frame yet
  Clock::time_point pending_since_;
  std::deque<Queued> awaited_, hints_, writes_;
  int reads_in_flight_ = 0, writes_in_flight_ = 0;
  TierStats stats_;
  std::thread io_;
};

}  // namespace oasis::kv
