#include "oasis/device/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oasis {
namespace {

constexpr int kSpins = 4000;  // about 50 us: longer than the gap between two kernels of a step, shorter than a step

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (auto& t : workers_) t.join();
}

void ThreadPool::drain(int worker) {
  for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < items_;) (*body_)(i, worker);
}

void ThreadPool::run(int64_t items, FunctionRef<void(int64_t, int)> body) {
  if (items <= 0) return;
  if (workers_.empty() || items == 1) {
    for (int64_t i = 0; i < items; ++i) body(i, 0);
    return;
  }
  body_ = &body;
  items_ = items;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  drain(0);
  for (int spins = 0; running_.load(std::memory_order_acquire) != 0;) {
    if (++spins < kSpins) {
      relax();
    } else {
      const int left = running_.load(std::memory_order_acquire);
      if (left != 0) running_.wait(left, std::memory_order_acquire);
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
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace oasis
