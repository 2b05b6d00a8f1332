// How a file tier's I/O thread moves bytes: many requests in flight, answered in any order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oasis/base/status.h"

namespace oasis::kv {

struct IoRequest {
  bool write = false;
  std::byte* data = nullptr;
  int64_t bytes = 0, offset = 0;
  int64_t tag = 0;
};

struct IoResult {
  static constexpr int kEndOfFile = -1;
  int64_t tag = 0;
  int error = 0;  // 0: all bytes moved; an errno; or kEndOfFile: the file is shorter than that
};

// submit and wait are called by one thread, wake by any. Destroyed with nothing in flight.
class IoBackend {
 public:
  virtual ~IoBackend() = default;
  virtual std::string name() const = 0;
  // The most requests in flight.
  virtual int depth() const = 0;
  virtual void submit(std::span<const IoRequest> requests) = 0;
  // Returns when at least one request is done (all that are so are appended), wake() was called, or the time is over.
  virtual void wait(std::chrono::milliseconds timeout, std::vector<IoResult>& done) = 0;
  virtual void wake() = 0;
};

// Fails where the kernel has no io_uring or forbids it (containers often do).
Result<std::unique_ptr<IoBackend>> make_uring_backend(int fd);
// pread and pwrite on `threads` threads.
std::unique_ptr<IoBackend> make_thread_backend(int fd, int threads);
// io_uring if it can be had, else threads.
std::unique_ptr<IoBackend> make_io_backend(int fd);

}  // namespace oasis::kv
