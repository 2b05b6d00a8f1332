#include "oasis/kv/io_backend.h"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace oasis::kv {
namespace {

int move_all(int fd, const IoRequest& request) {
  int64_t moved = 0;
  while (moved < request.bytes) {
    std::byte* data = request.data + moved;
    const auto left = static_cast<size_t>(request.bytes - moved);
    const ssize_t n =
        request.write ? pwrite(fd, data, left, request.offset + moved) : pread(fd, data, left, request.offset + moved);
    if (n > 0) {
      moved += n;
    } else if (n == 0) {
      return request.write ? ENOSPC : IoResult::kEndOfFile;
    } else if (errno == EINVAL && !request.write && moved % 512 != 0) {
      return IoResult::kEndOfFile;  // O_DIRECT cannot go on after a file that ends within a sector
    } else if (errno != EINTR && errno != EAGAIN) {
      return errno;
    }
  }
  return 0;
}

class ThreadBackend final : public IoBackend {
 public:
  ThreadBackend(int fd, int threads) : fd_(fd) {
    threads_.reserve(static_cast<size_t>(threads));
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {  // a thread that still ran would end the process
      end();
      throw;
    }
  }
  ~ThreadBackend() override { end(); }
  std::string name() const override { return fmt::format("pread/pwrite on {} threads", threads_.size()); }
  int depth() const override { return static_cast<int>(threads_.size()); }

  void submit(std::span<const IoRequest> requests) override {
    std::lock_guard lock(mutex_);
    for (const IoRequest& request : requests) {
      waiting_.push_back(request);
      work_.notify_one();
    }
  }
  void wait(std::chrono::milliseconds timeout, std::vector<IoResult>& done) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return woken_ || !done_.empty(); });
    woken_ = false;
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
  }
  void wake() override {
    std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }

 private:
  void end() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      work_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      const IoRequest request = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int error = move_all(fd_, request);
      lock.lock();
      done_.push_back({request.tag, error});
      changed_.notify_one();
    }
  }

  const int fd_;
  std::mutex mutex_;
  std::condition_variable work_, changed_;
  bool stop_ = false, woken_ = false;
  std::deque<IoRequest> waiting_;
  std::vector<IoResult> done_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoBackend> make_thread_backend(int fd, int threads) {
  return std::make_unique<ThreadBackend>(fd, threads);
}

std::unique_ptr<IoBackend> make_io_backend(int fd) {
#ifdef OASIS_HAVE_URING
  if (Result<std::unique_ptr<IoBackend>> uring = make_uring_backend(fd); uring.ok()) return std::move(*uring);
#endif
  constexpr int kThreads = 16;
  return make_thread_backend(fd, kThreads);
}

}  // namespace oasis::kv
