// A fixed set of threads that share loops. The CPU backend's foreground kernels run on one.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace oasis {

// A non-owning reference to a callable, valid during the call it is passed to.
template <typename Signature>
class FunctionRef;
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
  FunctionRef(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* o, Args... args) -> R { return (*static_cast<std::remove_reference_t<F>*>(o))(args...); }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

class ThreadPool {
 public:
  // `threads` >= 1, the caller of `run` included. Idle workers spin for a moment, then sleep. Like std::thread it
  // throws where the system refuses a thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(item, worker) once for every item in [0, items); items are handed out one by one in ascending order,
  // worker is in [0, size()). Returns when all have returned. Not reentrant; one caller at a time. A kernel whose
  // result must not depend on the number of threads makes each item's work independent of who runs it.
  void run(int64_t items, FunctionRef<void(int64_t item, int worker)> body);

 private:
  void end();
  void work(int worker);
  void drain(int worker);

  std::vector<std::thread> workers_;
  // The loop under way: its number (upper bits) and the next item to hand out, changed together, so that a worker that
  // wakes late claims nothing of a loop that it has not seen begin, and `run` need not wait for workers that never
  // woke.
  alignas(64) std::atomic<uint64_t> next_{0};
  std::atomic<FunctionRef<void(int64_t, int)>*> body_{nullptr};
  std::atomic<int64_t> items_{0};
  alignas(64) std::atomic<int64_t> done_{0};  // items that have returned
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace oasis
