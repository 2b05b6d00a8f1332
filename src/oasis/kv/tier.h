// The capacity tier: where every sealed block lives. A *home* is the record of one block: for each layer a part (KV of
// all heads), the summaries of all layers, and `extra` bytes that belong to the drafter (its KV rows of the block and
// the fused feature of the block's last token). A tier stores homes by number; who refers to a home and why is
// HomeStore's business (home_store.h).
//
// Contract of every tier
// - Thread-safe. The engine's thread writes, the transfer's thread reads; calls block only where it is said.
// - Memory handed out stays valid until it is handed back.
// - A part is written once; to write it again, its home is dropped first.
// - A tier never returns bytes that differ from those written: a checksum is verified whenever a part comes back from a
// file.
// - An error belongs to the home it names; others are not affected.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/device/device.h"
#include "oasis/kv/shape.h"

namespace oasis::kv {

using HomeId = int32_t;

struct PartKey {
  HomeId home;
  int32_t layer;  // relative to shape.first_layer
};

// One batch of reads in flight. The tier counts it down; `wait` or `done` tell when every part is present and pinned,
// or failed. It must outlive its batch.
class FetchTicket {
 public:
  FetchTicket() = default;
  // `on_done` is called once, on whatever thread finishes the batch (possibly within fetch()), with no lock of the tier
  // held; it must not block.
  explicit FetchTicket(std::function<void()> on_done) : on_done_(std::move(on_done)) {}
  bool done() const;
  // Returns when all parts have arrived. The first error of the batch, if any.
  Status wait();

  // For tiers: start(n) once, then finish() until n parts are told; the ticket may be destroyed as soon as the last
  // call has begun to return, so a tier does not touch it afterwards. start(0) finishes it.
  void start(int64_t parts);
  void finish(int64_t parts, const Status& status);

 private:
  std::function<void()> on_done_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t left_ = -1;  // not started
  Status status_;
};

struct TierStats {
  int64_t bytes_written = 0, bytes_read = 0;  // over the slow link (file); zero where there is none
  int64_t parts_present = 0, parts_evicted = 0;
  int64_t read_batches = 0, checksum_failures = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;
  virtual std::string describe() const = 0;
  virtual int32_t homes() const = 0;     // how many homes fit
  virtual bool addressable() const = 0;  // every written part can be acquired at once
  // Addressable tiers: bytes from a home's part of one layer to that of the next. Staged ones: 0.
  virtual int64_t layer_stride() const { return 0; }
  virtual int64_t memory_bytes() const = 0;  // DRAM taken by the tier
  virtual int64_t file_bytes() const = 0;    // file space reserved, or 0
  // How many parts can be pinned at once: a fetch of more fails at once.
  virtual int64_t pinnable_parts() const = 0;

  // Writing. `begin_write` gives shape.part_bytes() bytes to fill, pinned until `end_write`, which publishes them: from
  // then on the part can be acquired. A staged tier writes them to its file in the background; a failure of that shows
  // up in `status(home)`. begin_write blocks while all frames are pinned or dirty and writes are under way; it fails if
  // that does not end, or with the home's status if that is an error (nothing is pinned then: no end_write).
  virtual Result<std::byte*> begin_write(PartKey key) = 0;
  virtual void end_write(PartKey key) = 0;

  // Summaries and extra bytes of a home: small, always in memory. `meta_bytes()` bytes, valid as long as the tier
  // lives.
  virtual std::byte* meta(HomeId home) = 0;
  virtual int64_t meta_bytes() const = 0;

  // Reading. True if the part can be acquired without waiting (relaxed; may change).
  virtual bool present(PartKey key) const = 0;
  // Pins a present part and returns its shape.part_bytes() bytes, or null if it is absent. Every acquire needs one
  // release.
  virtual const std::byte* acquire(PartKey key) = 0;
  virtual void release(PartKey key) = 0;
  // Starts reads of the absent ones among `parts`, as one batch, without blocking; no part is read twice while it is
  // present or on its way. Every part is pinned for the caller when it arrives (also those that were present already),
  // so that acquire then finds it (with a pin of its own). The caller owes one release for each part once the ticket is
  // done, whatever that says: also for one that failed (its acquire returns null). Callers that hold pins while they
  // wait for a fetch may be refused, if all room is pinned.
  virtual void fetch(std::span<const PartKey> parts, FetchTicket& ticket) = 0;
  // Like fetch, but nobody waits and nothing stays pinned: brings parts in for a later step. A hint: left out for parts
  // that no room can be made for.
  virtual void prefetch(std::span<const PartKey> parts) = 0;

  // Forgets the home's bytes (its file range may be written again by the next owner). No part of it is pinned, being
  // written or awaited by a fetch; a prefetch under way may be.
  virtual void drop(HomeId home) = 0;
  // The first error met while writing or reading this home since it was dropped last.
  virtual Status status(HomeId home) const = 0;
  // Returns when all writes so far are in the file (no-op for DRAM).
  virtual void flush() = 0;

  virtual TierStats stats() const = 0;

  // A tier whose bytes can outlive the process (HomeStore::save and restore): the file that holds them, and the parts
  // of a home.
  struct Lasting {
    std::string file;
    int32_t layers = 0;
  };
  virtual std::optional<Lasting> lasting() const { return {}; }
  // Of the home's parts, [layers]. False: not all of them are in the file, or one failed. After flush().
  virtual bool checksums(HomeId, std::span<uint64_t>) const { return false; }
  // The file holds the parts of this unwritten home since an earlier run. Believed as they are read, by these
  // checksums.
  virtual void adopt(HomeId, std::span<const uint64_t>) {}
  // The file stays when the tier ends.
  virtual void keep_file() {}
};

struct TierConfig {
  KvShape shape;
  int64_t extra_bytes = 0;   // of the drafter, per home
  Device* device = nullptr;  // whose kernels read and write parts in place, borrowed; null: the CPU's
};

// DRAM: every home's parts at a fixed address. `memory_bytes` bounds everything the tier allocates; homes() follows
// from it.
Result<std::unique_ptr<Tier>> make_dram_tier(const TierConfig& config, int64_t memory_bytes);
// What one home takes of it.
int64_t dram_home_bytes(const TierConfig& config);

// A file under a DRAM cache of parts (LRU): io_uring with O_DIRECT where the file system and kernel allow, else
// pread/pwrite on a small set of threads (said in describe()). `memory_bytes` bounds cache + metadata, `file_bytes` the
// file (0: as much as homes for `max_homes` need). The file is created or used again (its bytes count for nothing until
// they are adopted), its space reserved at once (a full disk is an error here, not later), locked against a second
// process, and unlinked at the end unless it is to be kept. A file that is not empty and was not made by this tier is
// left alone: an error.
struct FileTierConfig {
  std::string path;
  int64_t file_bytes = 0;
  int64_t memory_bytes = 0;
  int32_t max_homes = 0;  // 0: as many as `file_bytes` hold
};
Result<std::unique_ptr<Tier>> make_file_tier(const TierConfig& config, const FileTierConfig& file);

}  // namespace oasis::kv
