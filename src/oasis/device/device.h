// The seam between the engine and where it runs. A Device hands out memory and streams; a Stream runs kernels in order.
// CPU backend: the foreground stream runs each kernel at once on a thread pool, background streams are worker threads.
// CUDA backend: streams of the GPU; built where the option OASIS_CUDA is on. Kernels take a Stream& and find what they
// need of it (kernels/README.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "oasis/base/status.h"
#include "oasis/device/thread_pool.h"

namespace oasis {

enum class Backend : uint8_t { kCpu, kCuda };

// Memory of a device, owned. Aligned to 4096 bytes, zeroed.
class Buffer {
 public:
  Buffer() = default;
  // `free` is called with the memory once; ownership of `data` moves in.
  Buffer(std::byte* data, size_t bytes, std::function<void(std::byte*, size_t)> free)
      : data_(data), bytes_(bytes), free_(std::move(free)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  std::function<void(std::byte*, size_t)> free_;
};

// Runs work in the order it was given. One thread enqueues at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Backend backend() const = 0;
  // CPU backend: runs `work` on this stream (at once on the foreground stream, later on a worker's thread otherwise).
  virtual void enqueue(std::function<void()> work) = 0;
  // Returns when everything enqueued so far has run.
  virtual void synchronize() = 0;
  // Copies between any two places in memory, host or device, after what was enqueued before. Host memory is free to be
  // reused on return; as a target it holds the bytes on return.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // Like copy, from pinned memory, but returns at once: the source stays as it is until the stream is synchronised.
  virtual void upload(void* to, const void* pinned, size_t bytes) { copy(to, pinned, bytes); }
  // Sets every byte of memory that the stream's kernels can write.
  virtual void fill(void* to, uint8_t byte, size_t bytes) = 0;
  // CPU backend: the threads that a kernel on this stream may share its loops over.
  virtual ThreadPool& pool() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Backend backend() const = 0;
  virtual std::string name() const = 0;
  // Fails with the number of bytes asked for and what to do.
  virtual Result<Buffer> allocate(size_t bytes) = 0;
  // Host memory that the device's kernels can read and write in place; on the CPU the same as allocate(). A GPU's is
  // not zeroed: what is never touched costs no time.
  virtual Result<Buffer> allocate_pinned(size_t bytes) = 0;
  // Of a GPU's own memory: all there is, and what is taken, by anyone. 0 on the CPU.
  virtual int64_t memory_total() const { return 0; }
  virtual int64_t memory_in_use() const { return 0; }
  virtual Stream& foreground() = 0;
  virtual std::unique_ptr<Stream> make_background_stream() = 0;
};

// `threads` >= 1; 0: one a core that this process sees.
std::unique_ptr<Device> make_cpu_device(int threads);

// The GPU `index`. Fails where this build has no CUDA, and where there is no usable driver or GPU, saying which.
Result<std::unique_ptr<Device>> make_cuda_device(int index);

}  // namespace oasis
