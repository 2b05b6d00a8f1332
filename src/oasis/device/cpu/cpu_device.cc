#include <sys/mman.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "oasis/base/units.h"
#include "oasis/device/device.h"

namespace oasis {
namespace {

class ForegroundStream : public Stream {
 public:
  explicit ForegroundStream(int threads) : pool_(threads) {}
  Backend backend() const override { return Backend::kCpu; }
  void enqueue(std::function<void()> work) override { work(); }
  void synchronize() override {}
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void fill(void* to, uint8_t byte, size_t bytes) override {
    if (bytes > 0) std::memset(to, byte, bytes);
  }
  ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool pool_;
};

class WorkerStream : public Stream {
 public:
  WorkerStream() : pool_(1), thread_([this] { work(); }) {}
  ~WorkerStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Backend backend() const override { return Backend::kCpu; }
  void enqueue(std::function<void()> work) override {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }
  void copy(void* to, const void* from, size_t bytes) override {
    synchronize();
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void fill(void* to, uint8_t byte, size_t bytes) override {
    enqueue([=] { std::memset(to, byte, bytes); });
  }
  ThreadPool& pool() override { return pool_; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;  // stopped, and drained
      auto work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  ThreadPool pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false, busy_ = false;
  std::thread thread_;
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads), foreground_(threads) {}
  Backend backend() const override { return Backend::kCpu; }
  std::string name() const override { return fmt::format("cpu ({} threads)", threads_); }
  Result<Buffer> allocate(size_t bytes) override {
    if (bytes == 0) return Buffer();
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return resource_exhausted("cannot allocate {}: {}; ask for less memory", format_bytes(bytes),
                                std::strerror(errno));
    }
    ::madvise(data, bytes, MADV_HUGEPAGE);
    return Buffer(static_cast<std::byte*>(data), bytes, [](std::byte* p, size_t n) { ::munmap(p, n); });
  }
  Result<Buffer> allocate_pinned(size_t bytes) override { return allocate(bytes); }
  Stream& foreground() override { return foreground_; }
  std::unique_ptr<Stream> make_background_stream() override { return std::make_unique<WorkerStream>(); }

 private:
  int threads_;
  ForegroundStream foreground_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) {
  if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace oasis
