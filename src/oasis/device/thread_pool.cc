#include "oasis/device/thread_pool.h"

#include "oasis/base/status.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oasis {
namespace {

constexpr int kSpins = 4000;  // about 50 us: longer than the gap between two kernels of a step, shorter than a step

constexpr int kItemBits = 28;  // 2^28 items a loop, 2^36 loops before a number comes back
constexpr uint64_t kItemMask = (uint64_t{1} << kItemBits) - 1;
constexpr uint64_t kClosed = kItemMask;  // as an item: nothing may be claimed

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  workers_.reserve(static_cast<size_t>(threads));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {  // a thread that still ran would end the process
    end();
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (auto& t : workers_) t.join();
}

// Claims and runs items until none is left. What is read before the claim belongs to the loop that the claim is for, or
// the claim fails: `run` closes the old loop before it writes body and items, and opens the new one after.
void ThreadPool::drain(int worker) {
  for (;;) {
    uint64_t next = next_.load(std::memory_order_acquire);
    const auto* body = body_.load(std::memory_order_acquire);
    const int64_t items = items_.load(std::memory_order_acquire);
    const uint64_t item = next & kItemMask;
    if (item == kClosed || static_cast<int64_t>(item) >= items) return;
    if (!next_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) continue;
    (*body)(static_cast<int64_t>(item), worker);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == items) done_.notify_one();
  }
}

void ThreadPool::run(int64_t items, FunctionRef<void(int64_t, int)> body) {
  if (items <= 0) return;
  OASIS_CHECK(items < static_cast<int64_t>(kClosed), "a loop of {} items", items);
  if (workers_.empty() || items == 1) {
    for (int64_t i = 0; i < items; ++i) body(i, 0);
    return;
  }
  const uint64_t loop = ((next_.load(std::memory_order_relaxed) >> kItemBits) + 1) << kItemBits;
  next_.store(loop | kClosed, std::memory_order_relaxed);
  body_.store(&body, std::memory_order_release);
  items_.store(items, std::memory_order_release);
  done_.store(0, std::memory_order_relaxed);
  next_.store(loop, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  drain(0);
  int spins = 0;
  for (int64_t done; (done = done_.load(std::memory_order_acquire)) != items;) {
    if (++spins < kSpins) {
      relax();
    } else {
      done_.wait(done, std::memory_order_acquire);
    }
  }
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen;) {
      if (++spins < kSpins) {
        relax();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    drain(worker);
  }
}

}  // namespace oasis
