// The background stage: brings block-heads from their homes into slots. One thread, fed one plan a layer and step;
// plans whose parts are all in the addressable tier are gathered at once, others when their reads arrive, so that a
// slow tier delays only its layer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "oasis/device/device.h"
#include "oasis/kernels/kernels.h"
#include "oasis/kv/tier.h"
#include "oasis/lookahead/config.h"

namespace oasis::lookahead {

// One block-head to bring in.
struct TransferItem {
  kv::PartKey part;
  int64_t offset = 0;  // of the block-head in the part
  std::byte* to = nullptr;
  int32_t sequence = 0;
};

// A block-head that could not be brought in.
struct TransferError {
  int32_t sequence = 0;
  int64_t step = 0;  // of the plan; -1: of run_now
  Status status;
};

class Transfer {
 public:
  Transfer(Device& device, kv::Tier& tier, const CoreConfig& config);
  ~Transfer();

  // Hands over the plan of (layer, step); the victims' slots are at rest and home. An empty plan publishes at once.
  // Steps of one layer come in ascending order, each after wait() for the one before.
  void publish(int32_t layer, int64_t step, std::vector<TransferItem> items);
  // Returns when the plan of (layer, step) is in the slots. Seconds waited.
  double wait(int32_t layer, int64_t step);
  // Brings `items` in now, on the caller's thread. Errors go the same way as those of plans.
  void run_now(std::vector<TransferItem> items);
  // Returns when everything published is done.
  void drain();

  // Each is told once.
  std::vector<TransferError> take_errors();
  double busy_seconds() const { return busy_nanoseconds_.load(std::memory_order_relaxed) * 1e-9; }
  int64_t moved() const { return moved_.load(std::memory_order_relaxed); }  // block-heads

 private:
  struct Plan {
    int32_t layer;
    int64_t step;
    std::vector<TransferItem> items;
    std::vector<kv::PartKey> parts{};  // distinct parts of the items, pinned by the ticket
    std::unique_ptr<kv::FetchTicket> ticket{};
    int64_t id = 0;  // while it is read
  };
  void work();
  void begin(Plan plan);
  void finish(Plan& plan, const Status& status);
  void start_reads(Plan& plan);

  kv::Tier& tier_;
  const kernels::Kernels& kernels_;
  const CoreConfig& config_;
  std::unique_ptr<Stream> stream_;          // the CPU backend's gather runs inline on the transfer's thread
  std::vector<std::atomic<int64_t>> done_;  // [layers]: last step whose plan is in the slots
  int64_t last_id_ = 0;                     // the transfer's thread alone
  std::atomic<int64_t> busy_nanoseconds_{0}, moved_{0};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_, idle_;
  std::deque<Plan> queue_;
  std::list<Plan> reading_;
  std::set<int64_t> arrived_;  // of those, the ids whose reads have ended
  std::vector<TransferError> errors_;
  int in_hand_ = 0;  // plans taken off the queue and not finished, those being read excluded
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace oasis::lookahead
